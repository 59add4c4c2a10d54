"""An engine without a model: it claims memory, takes time, answers and fails as it is told.

It serves contract tests, load generation and trying out policies. All calls run at once; `step`
lets every call that is due say one delta, in each of its choices, which all get the same script.
Text goes through the parsers that a request names, like a real model's. Without `tokens_per_s`
nothing is ever waited for, but that a long prompt takes its turn where `prefill_s` makes it last.
Claimed sizes are only claimed. Faults (`exit_after`, `hang_after`, `freeze_after`, an exit in a
script) strike at the start of a step, when all that was said before is on its way.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines import script, wire
from engines.answer import Answer
from engines.base import (
    Emit,
    Emitted,
    EngineError,
    LoadError,
    Plain,
    Report,
    check_request,
)
from engines.scripted_answers import answer_of, logprobs_of, prompt_of
from engines.scripted_audio import Hearing
from engines.scripted_machine import Machine, RealMachine
from engines.scripted_vectors import Weighing
from engines.speech.scripted import VOICES, Speeches
from engines.turns import PrefillTurn
from engines.words import Words, words

DEFAULT_CONTEXT_LENGTH = 131_072

CRASH_CODE = 1

MODALITIES: tuple[wire.Modality, ...] = ("text", "image", "video", "audio")
"""It looks at nothing that it is shown; what its entry's kind takes, the gateway knows."""

_MAX_WAIT_S = 0.05
_SLICE_S = 0.1
_FLOOD_LINES = 10_000
_FLOOD_LINE = (
    "a scripted model has much to say on stderr and nothing of it matters " + "." * 30 + "\n"
)


@dataclass(slots=True)
class _Call:
    """One running call. `due` is when it has its next thing to do, by the machine's clock."""

    id: int
    prompt_tokens: int
    reply: script.Reply
    answers: Sequence[Answer | Hearing | Weighing]
    logprobs: int | None
    submitted_at: float
    due: float
    prefill_slices: int
    prefilled: int = 0
    started_at: float | None = None


class ScriptedEngine(Plain):
    """Constructing it checks the options. Raises `LoadError` naming a bad one."""

    def __init__(
        self,
        spec: wire.EngineSpec,
        limits: wire.Limits,
        emit: Emit,
        machine: Machine | None = None,
    ) -> None:
        self._options = script.options(spec.scripted)
        self._default_reply = self._options.reply()
        self._context_length = spec.context_length or DEFAULT_CONTEXT_LENGTH
        self._limits = limits
        self._emit = emit
        self._machine: Machine = machine or RealMachine()
        self._calls: dict[int, _Call] = {}
        self._turn = PrefillTurn(emit)
        self._stalled = False
        self._words = Words()
        self._deltas = 0
        self._fault: Callable[[], None] | None = None
        self._faults = self._planned_faults()
        self._speeches = Speeches(
            self._machine, self._tell_spoken, self._exit_next, self._options.tokens_per_s
        )

    def _planned_faults(self) -> dict[int, Callable[[], None]]:
        """By the number of deltas after which each strikes once; of equals only the last counts."""
        given, machine = self._options, self._machine
        planned = (
            (given.freeze_after, machine.freeze),
            (given.hang_after, machine.hang),
            (given.exit_after, lambda: machine.exit(CRASH_CODE)),
        )
        return {deltas: fault for deltas, fault in planned if deltas is not None}

    # --- loading --------------------------------------------------------------------------------

    def load(self, report: Report) -> wire.Ready:
        report(wire.Loading("starting"))
        self._flood()
        step = self._options.load_step()
        if step == "hang":
            self._machine.hang()
        self._load_weights(report)
        if isinstance(step, script.ExitAtLoad):
            self._machine.exit(step.exit)
        if step == "error":
            raise LoadError(
                f"scripted: fail_loads makes load number {self._options.load_number} fail"
            )
        return wire.Ready(
            self._context_length,
            self.memory(),
            modalities=MODALITIES,
            voices=VOICES,
            dimensions=self._options.vector_dim,
        )

    def _flood(self) -> None:
        asked = self._options.stderr_flood
        lines = _FLOOD_LINES if asked is True else int(asked)
        for _ in range(lines):
            self._machine.write_stderr(_FLOOD_LINE)

    def _load_weights(self, report: Report) -> None:
        given = self._options
        total = self.memory().weights_bytes
        slices = max(1, math.ceil(given.load_s / _SLICE_S))
        for number in range(slices):
            report(wire.Loading("weights", total * number // slices, total))
            if given.load_stall_at is not None and number / slices >= given.load_stall_at:
                self._machine.hang()
            if given.load_s:
                self._machine.wait(given.load_s / slices)
        report(wire.Loading("weights", total, total))
        if given.load_stall_at is not None:
            self._machine.hang()  # a load of few slices may have none at that fraction

    # --- calls ----------------------------------------------------------------------------------

    def submit(self, request: wire.Request) -> None:
        if isinstance(request, wire.Speak):
            self._speeches.submit(request)
            self._fault = self._fault or self._faults.pop(self._deltas, None)
            return
        if isinstance(request, wire.Transcribe):
            self._hear(request)
            return
        if isinstance(request, wire.Embed | wire.Rerank):
            self._weigh(request)
            return
        check_request(request)
        messages, prompt_tokens = prompt_of(request, self._words)
        reply_script = script.script_in(messages) or self._default_reply
        room = self._context_length - prompt_tokens
        if room < 1:
            raise EngineError(
                "context_length_exceeded",
                f"the prompt has {prompt_tokens} tokens, which leaves no room in a context of"
                f" {self._context_length}",
            )
        max_tokens = room if request.max_tokens is None else min(room, request.max_tokens)
        answers = [answer_of(request, reply_script, choice) for choice in range(request.n)]
        reply = script.Reply(reply_script, max_tokens)
        self._begin(request.id, prompt_tokens, reply, answers, request.logprobs)

    def _hear(self, request: wire.Transcribe) -> None:
        """The prompt can be a script, as a message can."""
        told = script.script_in([{"role": "user", "content": request.prompt}])
        reply = script.Reply(told or self._default_reply, self._context_length)
        self._begin(request.id, 0, reply, [Hearing(request)])

    def _weigh(self, request: wire.Embed | wire.Rerank) -> None:
        """The first text can be a script, as a message can; else each text is told in its turn."""
        weighing = Weighing(request, self._options.vector_dim, self._context_length, self._words)
        first = request.query if isinstance(request, wire.Rerank) else weighing.texts[0]
        told = script.script_in([{"role": "user", "content": first}])
        told = told or script.Script([script.Say(text) for text in weighing.texts])
        self._begin(request.id, weighing.tokens, script.Reply(told, sys.maxsize), [weighing])

    def _begin(
        self,
        call_id: int,
        prompt_tokens: int,
        reply: script.Reply,
        answers: Sequence[Answer | Hearing | Weighing],
        logprobs: int | None = None,
    ) -> None:
        self._fault = self._fault or self._faults.pop(self._deltas, None)
        self._stalled = False
        now = self._machine.now()
        self._calls[call_id] = _Call(
            id=call_id,
            prompt_tokens=prompt_tokens,
            reply=reply,
            answers=answers,
            logprobs=logprobs,
            submitted_at=now,
            due=now + self._slice_s(),
            prefill_slices=self._slices(),
        )

    def answer(self, question: wire.Ask) -> wire.Answer:
        return self._words.answer(question, self._context_length)

    def cancel(self, call_id: int) -> None:
        if call_id in self._calls:
            self._fail(self._calls[call_id], "cancelled", "the call was cancelled")
            self._stalled = False
        self._speeches.cancel(call_id)

    def credit(self, call_id: int, nbytes: int) -> None:
        self._speeches.credit(call_id, nbytes)

    def take_turn(self) -> None:
        self._turn.take()
        self._stalled = False
        call = self._calls.get(self._turn.holder or 0)
        if call is not None:
            call.due = self._machine.now() + self._slice_s()

    @property
    def busy(self) -> bool:
        calls = bool(self._calls) and not self._stalled
        return calls or self._speeches.running > 0 or self._fault is not None

    @property
    def running(self) -> int:
        return len(self._calls) + self._speeches.running

    @property
    def waiting(self) -> int:
        return 0

    def step(self) -> None:
        if self._fault is not None:
            self._strike(self._fault)
        now = self._machine.now()
        going = [call for call in self._calls.values() if self._goes_on(call)]
        self._stalled = bool(self._calls) and not going
        due = [call for call in going if call.due <= now]
        if going and not due:
            self._wait(min(call.due for call in going) - now)
        for call in due:
            if self._fault is not None:
                return
            self._advance(call, now)
        if self._fault is None:
            self._speeches.step()

    def _strike(self, fault: Callable[[], None]) -> None:
        self._fault = None
        fault()

    def _goes_on(self, call: _Call) -> bool:
        """False while its prompt, which is long and takes time, waits for its turn."""
        if call.prefilled == call.prefill_slices:
            return True
        return self._turn.ready(call.id, call.prompt_tokens)

    def _wait(self, seconds: float) -> None:
        """Waits in small pieces, because a cancel only acts between two steps."""
        self._machine.wait(min(max(0.0, seconds), _MAX_WAIT_S))

    def _advance(self, call: _Call, now: float) -> None:
        if call.prefilled < call.prefill_slices:
            self._prefill(call)
            return
        if call.started_at is None:
            call.started_at = now
            self._emit(wire.Started(call.id, call.prompt_tokens))
        piece = call.reply.advance()
        match piece:
            case script.Said():
                self._say(call, piece, now)
            case script.Sleep(seconds):
                call.due = now + seconds
            case script.Raise(text):
                self._fail(call, "engine_error", text)
            case script.Exit(code):
                self._exit_next(code)

    def _exit_next(self, code: int) -> None:
        self._fault = lambda: self._machine.exit(code)

    def _tell_spoken(self, event: Emitted) -> None:
        if isinstance(event, wire.Bytes):
            self._tell([event])
        else:
            self._emit(event)

    def _slices(self) -> int:
        return math.ceil(self._options.prefill_s / _SLICE_S)

    def _slice_s(self) -> float:
        return self._options.prefill_s / max(1, self._slices())

    def _prefill(self, call: _Call) -> None:
        call.prefilled += 1
        done = call.prompt_tokens * call.prefilled // call.prefill_slices
        self._emit(wire.PromptProgress(call.id, done, call.prompt_tokens))
        if call.prefilled < call.prefill_slices:
            call.due += self._slice_s()
        else:
            self._turn.over(call.id)

    def _say(self, call: _Call, said: script.Said, now: float) -> None:
        for answer in call.answers:
            for text, special in said.pieces:
                if not answer.over:
                    logprobs = () if call.logprobs is None else logprobs_of(text, call.logprobs)
                    tokens = len(words(text))
                    self._tell(answer.add(text, special, tokens=tokens, logprobs=logprobs))
        over = call.answers[0].over
        if (over or said.end is not None) and self._fault is None:
            self._finish(call, said.end or "stop", now)
        elif self._options.tokens_per_s is not None:
            interval = said.tokens / self._options.tokens_per_s
            # From the due time, which keeps the rate; after a pause not in a burst, though.
            call.due = max(call.due, now - interval) + interval

    def _tell(self, events: Sequence[wire.Output | wire.ChoiceFinished]) -> None:
        """Emits, counting deltas; the fault planned for a delta strikes before the next step."""
        for event in events:
            self._emit(event)
            if not isinstance(event, wire.ChoiceFinished | wire.Transcript):
                self._deltas += 1
                self._fault = self._fault or self._faults.pop(self._deltas, None)

    def _finish(self, call: _Call, end: script.Finish, now: float) -> None:
        del self._calls[call.id]
        for answer in call.answers:
            self._tell(answer.finish(end))
        started_at = now if call.started_at is None else call.started_at
        usage = wire.Usage(
            call.prompt_tokens,
            call.reply.tokens * sum(not isinstance(each, Weighing) for each in call.answers),
            reasoning_tokens=sum(answer.reasoning_tokens for answer in call.answers),
        )
        timings = wire.Timings(prefill_s=started_at - call.submitted_at, decode_s=now - started_at)
        self._emit(wire.Finished(call.id, usage, timings))

    def _fail(self, call: _Call, code: wire.FailureCode, message: str) -> None:
        del self._calls[call.id]
        self._turn.over(call.id)
        self._emit(wire.Failed(call.id, code, message))

    # --- the rest of the contract ---------------------------------------------------------------

    def set_limits(self, limits: wire.Limits) -> None:
        self._limits = limits

    def memory(self) -> wire.Memory:
        tokens = sum(
            call.prompt_tokens + call.reply.tokens * len(call.answers)
            for call in self._calls.values()
        )
        return wire.Memory(
            weights_bytes=round(self._options.size_gb * script.GIB),
            kv_bytes=round(self._options.kv_gb_per_1k * script.GIB * tokens / 1000),
        )

    def close(self) -> None:
        self._calls.clear()
        self._speeches.close()
