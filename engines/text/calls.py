"""The calls of one text model and their choices: each choice is one row of the generator.

All times are of the monotonic clock, in seconds. The work thread owns everything here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from engines import wire
from engines.answer import Answer
from engines.base import Emit, EngineError
from engines.text.constrain import Constraint
from engines.text.detokenize import Detokenizer
from engines.text.logprobs import Drawn
from engines.text.processors import Processor
from engines.text.sampling import Sampler

_log = logging.getLogger(__name__)

HEADROOM_TOKENS = 512
"""Growth reserved for a row when another is admitted. Reserving all of `max_tokens`, which is the
whole context for a client that names none, would leave a batch of one."""


@dataclass(slots=True)
class Call:
    """One request. `spell` gives a token's text; `special` does so for special tokens only."""

    id: int
    prompt: list[int]
    max_tokens: int
    logprobs: int | None
    spell: Callable[[int], str]
    special: Callable[[int], str | None]
    submitted_at: float
    boundaries: tuple[int, ...] = ()
    """Places in the prompt at which its cache is kept, in tokens."""
    started_at: float = 0.0
    first_token_at: float | None = None
    cached: int = 0
    uncached: int | None = None
    """Prompt tokens that no cache held when it was first looked at; None before that."""
    rows: list[Row] = field(default_factory=list)
    unfinished: int = 0
    """Choices that have not ended."""
    failed: bool = False

    def finished(self, now: float) -> wire.Finished:
        """The end of a call that all choices of have ended: the prompt counts once."""
        first = now if self.first_token_at is None else self.first_token_at
        return wire.Finished(
            self.id,
            wire.Usage(
                prompt_tokens=len(self.prompt),
                completion_tokens=sum(row.generated for row in self.rows),
                cached_tokens=self.cached,
                reasoning_tokens=sum(row.answer.reasoning_tokens for row in self.rows),
            ),
            wire.Timings(
                queue_s=self.started_at - self.submitted_at,
                prefill_s=first - self.started_at,
                decode_s=now - first,
            ),
        )


@dataclass(slots=True)
class Row:
    """One choice: how its tokens are drawn, and how they become text."""

    call: Call
    sampler: Sampler
    processors: list[Processor]
    detokenizer: Detokenizer
    answer: Answer
    constraint: Constraint | None = None
    generated: int = 0
    prefilling: bool = True
    fed: int = 0
    """Tokens of its prompt that were taken in, those from a cache not counted."""

    @property
    def expected_length(self) -> int:
        """Tokens it may hold before the next row is admitted beside it."""
        left = self.call.max_tokens - self.generated
        return len(self.call.prompt) + self.generated + min(left, HEADROOM_TOKENS)

    def show(self, token: int, drawn: Drawn | None) -> Sequence[wire.Delta]:
        """What `token` makes visible. Raises `EngineError` if its grammar could not be kept."""
        self._check_grammar()
        spelling = self.call.special(token)
        if spelling is None:
            text = self.detokenizer.add(token)
            if drawn is None:
                return self.answer.add(text, False)
            return self.answer.add(text, False, logprobs=[self._logprob(text, drawn)])
        logprobs = () if drawn is None else [self._logprob(spelling, drawn)]
        # A special token ends whatever character was not whole yet.
        rest = self.detokenizer.finish()
        before = self.answer.add(rest, False, tokens=0) if rest else ()
        if self.answer.over:
            return before
        return [*before, *self.answer.add(spelling, True, logprobs=logprobs)]

    def finish(self, reason: str) -> Sequence[wire.Delta | wire.ChoiceFinished]:
        """The last of the text, and the end: the model stopped, or "length" cut it.

        Raises `EngineError` if its grammar could not be kept.
        """
        self._check_grammar()
        deltas: list[wire.Delta | wire.ChoiceFinished] = []
        if not self.answer.over and (rest := self.detokenizer.finish()):
            deltas += self.answer.add(rest, False, tokens=0)
        return [*deltas, *self.answer.finish("length" if reason == "length" else "stop")]

    def _check_grammar(self) -> None:
        if self.constraint is not None and self.constraint.error is not None:
            raise EngineError(
                "unsupported",
                f"the grammar of the answer was too much after {self.generated} tokens:"
                f" {self.constraint.error}; make the schema or grammar simpler",
            )

    def tell(
        self, token: int, drawn: Callable[[], Drawn | None], reason: str | None, emit: Emit
    ) -> bool:
        """Emits what a token shows and, behind the last, the end; whether the choice has ended.

        `drawn` gives its log-probabilities; `reason` is why the model ends here, None where it goes
        on. Raises `EngineError` for a token that cannot be shown, whatever the fault: one call's
        text must not end the others.
        """
        self.generated += 1
        if self.call.first_token_at is None:
            self.call.first_token_at = monotonic()
        try:
            logprob = drawn()
            if reason != "stop":
                for delta in self.show(token, logprob):
                    emit(delta)
            if reason is None and not self.answer.over:
                return False
            for event in self.finish(reason or "stop"):
                emit(event)
        except EngineError:
            raise
        except Exception as error:  # a fault of a parser or a detokenizer
            _log.exception("call %d: its tokens cannot be turned into text", self.call.id)
            raise EngineError(
                "engine_error", f"its tokens cannot be turned into text: {error}"
            ) from error
        self.call.unfinished -= 1
        return True

    def _logprob(self, text: str, drawn: Drawn) -> wire.TokenLogprob:
        best = drawn.best[: self.call.logprobs]
        top = tuple((self.call.spell(token), value) for token, value in best)
        return wire.TokenLogprob(text, drawn.logprob, top)
