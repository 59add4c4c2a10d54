"""The calls of one text model: waiting, running as rows of one generator, over.

The work thread owns everything here; `_waiting` and `_rows` are changed nowhere else. Rows join
and leave between any two steps. A step is one decode step for every row and at most one prefill
chunk for each of the few rows in prefill.

Invariants: a call ends with exactly one `Finished` or `Failed`; a generator that raised is never
stepped again, because its caches have moved on and its tokens have not.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from engines import wire
from engines.base import Emit
from engines.text.detokenize import TextStream
from engines.text.limits import DeviceMemory
from engines.text.model import LoadedModel
from engines.text.prompt_cache import Layers, PromptCache
from engines.text.sampling import Sampler
from engines.text.serial import SerialGenerator

_log = logging.getLogger(__name__)

MAX_ROWS = 32
"""Rows in one batch; the gateway bounds a model's concurrency below this."""

PREFILL_ROWS = 2
"""Prompts in prefill at a time: few, so that decoding rows wait for little, and more than one, so
that a short prompt is not stuck behind a long one."""

HEADROOM_TOKENS = 512
"""Growth reserved for a row when another is admitted. Reserving all of `max_tokens`, which is the
whole context for a client that names none, would leave a batch of one."""


class Generator(Protocol):
    """What is used of `mlx_lm.generate.BatchGenerator`."""

    def insert(
        self,
        prompts: Sequence[list[int]],
        *,
        max_tokens: Sequence[int],
        caches: Sequence[Layers | None],
        all_tokens: Sequence[list[int]],
        samplers: Sequence[Sampler],
    ) -> list[int]: ...
    def next(self) -> tuple[Iterable[Any], Iterable[Any]]: ...
    def remove(
        self, uids: Sequence[int], return_prompt_caches: bool = False
    ) -> dict[int, tuple[Layers, list[int]]]: ...
    @property
    def prompt_cache_nbytes(self) -> int: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Call:
    """One request. Times are of the monotonic clock, in seconds."""

    id: int
    prompt: list[int]
    max_tokens: int
    sampler: Sampler
    text: TextStream
    submitted_at: float
    started_at: float = 0.0
    first_token_at: float | None = None
    cached: int = 0
    generated: int = 0
    prefilling: bool = True

    @property
    def expected_length(self) -> int:
        """Tokens it may hold before the next call is admitted beside it."""
        left = self.max_tokens - self.generated
        return len(self.prompt) + self.generated + min(left, HEADROOM_TOKENS)


class Batch:
    """Runs calls on one loaded model and emits their events."""

    def __init__(
        self, loaded: LoadedModel, prefill_step_size: int, memory: DeviceMemory, emit: Emit
    ) -> None:
        self._loaded = loaded
        self._prefill_step_size = prefill_step_size
        self._memory = memory
        self._emit = emit
        self._max_rows = MAX_ROWS if loaded.batchable else 1
        self._waiting: deque[Call] = deque()
        self._rows: dict[int, Call] = {}
        self._prompts = PromptCache(memory.limits.prompt_cache_bytes, _evaluate)
        self._generator = memory.construct(self._build)

    @property
    def running(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_bytes(self) -> int:
        """Key-value caches of the running rows, padding included."""
        return int(self._generator.prompt_cache_nbytes)

    @property
    def prompts(self) -> PromptCache:
        return self._prompts

    def add(self, call: Call) -> None:
        self._waiting.append(call)

    def cancel(self, call_id: int) -> None:
        """Ends a call at once; what it computed is kept for a later prompt."""
        for call in self._waiting:
            if call.id == call_id:
                self._waiting.remove(call)
                self._fail(call, "cancelled", "cancelled before it started")
                return
        for uid, call in self._rows.items():
            if call.id == call_id:
                self._take_out([uid])
                if call.prefilling:
                    self._memory.give_back()
                self._fail(call, "cancelled", f"cancelled after {call.generated} tokens")
                return

    def step(self) -> None:
        """One step of the generator, after letting in the calls that there is room for."""
        while self._waiting and self._admits(self._waiting[0]):
            self._start(self._waiting.popleft())
        try:
            prompts, tokens = self._generator.next()
        except Exception as error:  # noqa: BLE001  whatever a model raises ends its calls only
            self._recover(error)
            return
        for response in prompts:
            self._on_prompt(response)
        over = [response.uid for response in tokens if self._on_token(response)]
        if over:
            self._take_out(over)

    def close(self) -> None:
        """Drops calls, generator and caches, without an event."""
        self._waiting.clear()
        self._rows.clear()
        self._generator.close()
        self._prompts.set_limit(0)

    def _build(self) -> Generator:
        stops, step = sorted(self._loaded.tokenizer.eos_token_ids), self._prefill_step_size
        if not self._loaded.batchable:
            return SerialGenerator(self._loaded.model, stop_tokens=stops, prefill_step_size=step)
        generator: Generator = BatchGenerator(
            self._loaded.model,
            stop_tokens=[[token] for token in stops],
            completion_batch_size=self._max_rows,
            prefill_batch_size=PREFILL_ROWS,
            prefill_step_size=step,
        )
        return generator

    def _admits(self, call: Call) -> bool:
        rows = self._rows.values()
        if len(rows) >= self._max_rows or sum(row.prefilling for row in rows) >= PREFILL_ROWS:
            return False
        kv_limit = self._memory.limits.kv_bytes
        if not rows or not kv_limit:
            return True
        longest = max(call.expected_length, *(row.expected_length for row in rows))
        return self._loaded.kv.batch(len(rows) + 1, longest) <= kv_limit

    def _start(self, call: Call) -> None:
        layers, call.cached = self._prompts.fetch(call.prompt)
        (uid,) = self._generator.insert(
            [call.prompt[call.cached :]],
            max_tokens=[call.max_tokens],
            caches=[layers],
            all_tokens=[call.prompt[: call.cached]],
            samplers=[call.sampler],
        )
        call.started_at = monotonic()
        self._rows[uid] = call
        self._emit(wire.Started(call.id, len(call.prompt), call.cached))

    def _on_prompt(self, response: Any) -> None:
        call = self._rows[response.uid]
        call.prefilling = not response.end_of_prompt
        done, _ = response.progress
        self._emit(wire.PromptProgress(call.id, call.cached + done, len(call.prompt)))

    def _on_token(self, response: Any) -> bool:
        """Shows a token; True when the call is over and its row must be taken out."""
        call = self._rows[response.uid]
        call.generated += 1
        if call.first_token_at is None:
            call.first_token_at = monotonic()
        reason = response.finish_reason
        try:
            text = "" if reason == "stop" else call.text.add(response.token)
            if reason is not None and call.text.stop is None:
                text += call.text.finish()
        except Exception as error:  # noqa: BLE001  one call's text must not end the others
            _log.exception("call %d: its tokens cannot be turned into text", call.id)
            self._fail(call, "engine_error", f"its tokens cannot be turned into text: {error}")
            return self._row_remains(response)
        if text:
            self._emit(wire.TextDelta(call.id, 0, text))
        if reason is None and call.text.stop is None:
            return False
        self._finish(call, "stop" if call.text.stop is not None else reason)
        return self._row_remains(response)

    def _row_remains(self, response: Any) -> bool:
        """Whether the generator still has the row; if not, keeps its cache and forgets it."""
        if response.finish_reason is None:
            return True
        del self._rows[response.uid]
        self._prompts.store(response.all_tokens, response.prompt_cache)
        return False

    def _take_out(self, uids: list[int]) -> None:
        removed = self._generator.remove(uids, return_prompt_caches=True)
        for layers, tokens in removed.values():
            self._prompts.store(tokens, layers)
        for uid in uids:
            del self._rows[uid]

    def _finish(self, call: Call, reason: wire.FinishReason) -> None:
        now = monotonic()
        first = now if call.first_token_at is None else call.first_token_at
        timings = wire.Timings(
            queue_s=call.started_at - call.submitted_at,
            prefill_s=first - call.started_at,
            decode_s=now - first,
        )
        usage = wire.Usage(len(call.prompt), call.generated, call.cached)
        self._emit(wire.ChoiceFinished(call.id, 0, reason, call.text.stop))
        self._emit(wire.Finished(call.id, usage, timings))

    def _fail(self, call: Call, code: wire.FailureCode, message: str) -> None:
        self._emit(wire.Failed(call.id, code, message, retryable=code == "engine_error"))

    def _recover(self, error: Exception) -> None:
        """Puts a new generator in place of one that raised; its calls are lost."""
        _log.exception("a step of the model failed; %d calls are lost", len(self._rows))
        lost = list(self._rows.values())
        self._rows.clear()
        self._generator.close()
        self._generator = self._memory.construct(self._build)
        self._memory.give_back()
        for call in lost:
            self._fail(call, "engine_error", f"the model failed: {type(error).__name__}: {error}")


def _evaluate(layers: Layers) -> None:
    mx.eval([layer.state for layer in layers])
