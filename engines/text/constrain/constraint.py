"""The processor that holds one row to its grammar.

A row goes through up to three phases. Where the model may think, its first tokens decide between a
trace and the answer, and both are allowed; inside of a trace everything is but its end without an
answer; behind it, and from the start where there is no trace, the answer's matcher decides.

Like every processor it never raises: what goes wrong is left in `error`, for the batch to end the
call with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from llguidance import LLMatcher

from engines.text.processors import TraceReader

_log = logging.getLogger(__name__)


class _Phase(Enum):
    UNDECIDED = auto()
    TRACE = auto()
    ANSWER = auto()


class Thinking(NamedTuple):
    """`trace` follows the trace that may come first; `later` matches what comes behind it.

    `openers` are what the answer may begin a trace with, where the prompt has not begun one.
    `tokens` turns text into tokens for a matcher.
    """

    trace: TraceReader
    later: LLMatcher
    openers: Collection[str]
    tokens: Callable[[str], list[int]]


class Constraint:
    """`first` matches the answer, or an opener of a trace; `ends` are the tokens that end it."""

    def __init__(
        self, first: LLMatcher, ends: Collection[int], thinking: Thinking | None = None
    ) -> None:
        self.error: str | None = None
        """Why the grammar could not be kept."""
        self._matcher = first
        self._ends = mx.array(sorted(ends))
        self._thinking = thinking
        self._phase = _Phase.ANSWER
        if thinking is not None:
            opened = thinking.trace.closer is not None
            self._phase = _Phase.TRACE if opened else _Phase.UNDECIDED
        self._said = ""
        self._begun = False
        self._only_ends: Any = None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        if self._begun:
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            self._take(int(tokens[-1].item()))
        self._begun = True
        if self.error is not None:
            return logits
        if self._phase is _Phase.TRACE:
            return mx.where(self._end_mask(logits), -mx.inf, logits).astype(logits.dtype)
        allowed = self._end_mask(logits) if self._matcher.is_stopped() else self._mask(logits)
        return mx.where(allowed, logits, -mx.inf).astype(logits.dtype)

    def _take(self, token: int) -> None:
        if self.error is not None:
            return
        try:
            if self._thinking is not None and self._phase is _Phase.TRACE:
                self._in_trace(self._thinking, token)
                return
            if not self._matcher.is_stopped():
                self._consume([token])
            if self._thinking is not None and self._phase is _Phase.UNDECIDED:
                self._decide(self._thinking, token)
        except Exception as error:  # noqa: BLE001  a tokenizer may raise anything, a processor nothing
            _log.exception("a grammar cannot be kept")
            self.error = f"{type(error).__name__}: {error}"

    def _decide(self, thinking: Thinking, token: int) -> None:
        self._said += thinking.trace.text(token)
        if self._said in thinking.openers:
            thinking.trace.enter(self._said)
            self._phase = _Phase.TRACE
        elif not any(opener.startswith(self._said) for opener in thinking.openers):
            self._phase = _Phase.ANSWER

    def _in_trace(self, thinking: Thinking, token: int) -> None:
        behind = thinking.trace.read(token)
        if thinking.trace.closer is None:
            self._phase, self._matcher = _Phase.ANSWER, thinking.later
            if behind:
                self._consume(thinking.tokens(behind))

    def _consume(self, tokens: list[int]) -> None:
        if not self._matcher.consume_tokens(tokens):
            self.error = self._matcher.get_error()

    def _mask(self, logits: Any) -> Any:
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            self.error = self._matcher.get_error()
            return mx.array(True)
        bits = np.unpackbits(words, bitorder="little", count=logits.shape[-1])
        return mx.array(bits.view(np.bool_))[None]

    def _end_mask(self, logits: Any) -> Any:
        if self._only_ends is None:
            self._only_ends = mx.zeros(logits.shape, mx.bool_)
            self._only_ends[:, self._ends] = True
        return self._only_ends
