"""What changes the logits of one row before its next token is drawn, for mlx-lm's generator.

A processor takes the row's tokens so far (prompt and answer, an array on the device) and its logits
[1, vocabulary], and returns logits of the same type. It belongs to one row and sees its steps in
order, the prompt first. None of them raises: an exception inside a step would spoil the batch.
Budgets and grammars wait for the device, and only in the rows that ask for one.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engines import wire
from engines.base import EngineError
from engines.text.detokenize import Detokenizer
from engines.text.vocabulary import check_token_ids

_log = logging.getLogger(__name__)

Processor = Callable[[Any, Any], Any]

_TAIL_CHARACTERS = 128
"""More than the longest marker of a trace."""


def check_sampling(sampling: wire.Sampling, vocabulary_size: int) -> None:
    """Raises `EngineError` for values that no processor could apply."""
    check_token_ids(list(sampling.logit_bias), vocabulary_size, "logit_bias: token id")
    numbers = (sampling.presence_penalty, sampling.frequency_penalty, *sampling.logit_bias.values())
    if not all(map(math.isfinite, numbers)):
        raise EngineError("invalid_request", "penalties and biases must be finite numbers")
    if not 0 < sampling.repetition_penalty < math.inf:
        raise EngineError(
            "invalid_request",
            f"repetition_penalty is {sampling.repetition_penalty}; it must be more than 0",
        )


def processors_for(sampling: wire.Sampling) -> list[Processor]:
    """The processors that `sampling`, which was checked, asks for; none for one that is plain."""
    processors: list[Processor] = []
    if sampling.logit_bias:
        processors.append(Bias(sampling.logit_bias))
    additive = sampling.presence_penalty or sampling.frequency_penalty
    if additive or sampling.repetition_penalty != 1.0:
        processors.append(Penalties(sampling))
    return processors


class Penalties:
    """Makes tokens less likely that were there before.

    Presence and frequency count generated tokens (https://platform.openai.com/docs/guides/text,
    "frequency and presence penalties"); repetition looks at the prompt too and divides positive
    logits, multiplies negative ones (CTRL, https://arxiv.org/abs/1909.05858, section 4.1).
    """

    def __init__(self, sampling: wire.Sampling) -> None:
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._repetition = sampling.repetition_penalty
        self._counts: Any = None
        self._prompt: Any = None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        if self._counts is None:
            self._counts = mx.zeros(logits.shape[-1])
            self._prompt = mx.zeros(logits.shape[-1], mx.bool_)
            self._prompt[tokens] = True
        else:
            self._counts = self._counts.at[tokens[-1:]].add(1)
        said = self._counts > 0
        changed = logits.astype(mx.float32)
        if self._repetition != 1.0:
            weaker = mx.where(changed > 0, changed / self._repetition, changed * self._repetition)
            changed = mx.where(said | self._prompt, weaker, changed)
        changed = changed - self._frequency * self._counts - self._presence * said
        # Another type would change how the other rows of the batch are rounded.
        return changed.astype(logits.dtype)


class Bias:
    """Adds to the logits of single tokens, given by id."""

    def __init__(self, bias: dict[int, float]) -> None:
        self._tokens = mx.array(list(bias))
        self._values = mx.array(list(bias.values()))

    def __call__(self, tokens: Any, logits: Any) -> Any:
        return logits.at[:, self._tokens].add(self._values.astype(logits.dtype))


@dataclass(frozen=True, slots=True)
class TraceMarkers:
    """How a family opens and closes its trace, and what to write to close it early.

    `pairs` are openers with their closers. `closing` is the tokens that end a trace, by closer.
    `open` is the closer of the trace that the prompt has opened, None if it has not; `may_open` is
    whether the answer may begin with one then.
    """

    pairs: tuple[tuple[str, str], ...]
    closing: dict[str, list[int]]
    open: str | None
    may_open: bool = True


class TraceReader:
    """Follows one row's text in and out of its traces.

    `closer` is what will end the trace that the row is in, None outside; `spent` counts the tokens
    of all traces.
    """

    def __init__(
        self,
        markers: TraceMarkers,
        detokenizer: Detokenizer,
        special: Callable[[int], str | None],
    ) -> None:
        self.closer = markers.open
        self.spent = 0
        self._pairs = markers.pairs
        self._detokenizer = detokenizer
        self._special = special
        self._tail = ""

    def text(self, token: int) -> str:
        """The text that `token` completes. Raises what the tokenizer raises."""
        return self._special(token) or self._detokenizer.add(token)

    def read(self, token: int) -> str:
        """Takes in the next token. Returns the text behind a closer that it completes."""
        self._tail = (self._tail + self.text(token))[-_TAIL_CHARACTERS:]
        if self.closer is None:
            for opener, _ in self._pairs:
                if opener in self._tail:
                    self.enter(opener)
                    break
        elif self.closer in self._tail:
            behind = self._tail.partition(self.closer)[2]
            self.leave()
            return behind
        else:
            self.spent += 1
        return ""

    def enter(self, opener: str) -> None:
        """The row has begun a trace with `opener`, which is one of the markers."""
        self.closer, self._tail = dict(self._pairs)[opener], ""

    def leave(self) -> None:
        self.closer, self._tail = None, ""


class ReasoningBudget:
    """Ends a trace after `budget` tokens by forcing the tokens that close it.

    It reads the row's text as it comes, which needs the last token: it waits for that one after the
    model's forward pass is on its way. A token that an earlier processor has ruled out, as a
    grammar does, is not forced, and neither is what was to follow it.
    """

    def __init__(
        self,
        budget: int,
        markers: TraceMarkers,
        detokenizer: Detokenizer,
        special: Callable[[int], str | None],
    ) -> None:
        self._budget = budget
        self._closing = markers.closing
        self._trace: TraceReader | None = TraceReader(markers, detokenizer, special)
        self._forced: deque[int] = deque()
        self._wanted: int | None = None
        """The token that was forced last, if the last one was."""
        self._begun = False

    def __call__(self, tokens: Any, logits: Any) -> Any:
        if self._begun:
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            self._read(int(tokens[-1].item()))
        self._begun = True
        trace = self._trace
        if trace is not None and trace.closer is not None and trace.spent >= self._budget:
            self._forced.extend(self._closing[trace.closer])
            trace.leave()
        self._wanted = self._forced.popleft() if self._forced else None
        if self._wanted is None:
            return logits
        wanted = mx.arange(logits.shape[-1])[None] == self._wanted
        possible = logits[:, self._wanted : self._wanted + 1] > -mx.inf
        forced = mx.where(wanted, 0.0, -mx.inf)
        return mx.where(possible, forced, logits).astype(logits.dtype)

    def _read(self, token: int) -> None:
        if self._wanted not in (None, token):
            self._forced.clear()
        if self._trace is None:
            return
        try:
            self._trace.read(token)
        except Exception:  # noqa: BLE001  a tokenizer may raise anything, a processor nothing
            _log.exception("a reasoning budget cannot be kept")
            self._trace = None
