"""One row at a time, for models whose caches mlx-lm cannot merge into a batch.

The same calls and answers as `mlx_lm.generate.BatchGenerator`, as far as the engine uses them, so
that the engine need not know which of the two it drives.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.text.processors import Processor
from engines.text.sampling import Sampler


class PromptResponse(NamedTuple):
    """A chunk of the prompt went through the model; `progress` is (done, total) tokens."""

    uid: int
    progress: tuple[int, int]
    end_of_prompt: bool
    end_of_segment: bool = False


class TokenResponse(NamedTuple):
    """One token; cache and tokens come with the last one."""

    uid: int
    token: int
    logprobs: Any
    finish_reason: str | None
    prompt_cache: list[Any] | None = None
    all_tokens: list[int] | None = None


@dataclass(slots=True)
class _Row:
    uid: int
    pending: list[int]
    total: int
    max_tokens: int
    layers: list[Any]
    tokens: list[int]
    """What `layers` hold."""
    sampler: Sampler
    processors: list[Processor]
    stops: list[int]
    """How many tokens of the prompt are in at the end of each of its segments but the last."""
    generated: int = 0


class SerialGenerator:
    """Generates for the rows in the order of their insertion, each to its end."""

    def __init__(self, model: Any, *, stop_tokens: Collection[int], prefill_step_size: int) -> None:
        self._model = model
        self._stop_tokens = frozenset(stop_tokens)
        self.prefill_step_size = prefill_step_size
        self._rows: list[_Row] = []
        self._inserted = 0

    def insert_segments(
        self,
        segments: Sequence[list[list[int]]],
        *,
        max_tokens: Sequence[int],
        caches: Sequence[list[Any] | None],
        all_tokens: Sequence[list[int]],
        samplers: Sequence[Sampler],
        logits_processors: Sequence[list[Processor]],
    ) -> list[int]:
        """Queues rows; one entry per prompt in every argument. Returns their ids.

        No chunk reaches over the end of a segment, so that the cache can be had there.
        """
        first = self._inserted
        columns = (segments, max_tokens, caches, all_tokens, samplers, logits_processors)
        for pieces, most, layers, held, sampler, processors in zip(*columns, strict=True):
            if layers is None:
                layers = make_prompt_cache(self._model)  # noqa: PLW2901
            prompt = list(chain.from_iterable(pieces))
            stops = list(accumulate(map(len, pieces)))[:-1]
            row = _Row(
                uid=self._inserted,
                pending=prompt,
                total=len(prompt),
                max_tokens=most,
                layers=layers,
                tokens=list(held),
                sampler=sampler,
                processors=processors,
                stops=stops,
            )
            self._rows.append(row)
            self._inserted += 1
        return list(range(first, self._inserted))

    def next(self) -> tuple[list[PromptResponse], list[TokenResponse]]:
        """One prefill chunk or one token of the first row."""
        if not self._rows:
            return [], []
        row = self._rows[0]
        if len(row.pending) > 1:
            return [self._prefill(row)], []
        ended = [] if row.generated else [PromptResponse(row.uid, (row.total, row.total), True)]
        return ended, [self._decode(row)]

    def extract_cache(self, uids: Sequence[int]) -> dict[int, tuple[list[Any], list[int]]]:
        """Copies of rows' caches and of the tokens these hold."""
        return {
            row.uid: (copy.deepcopy(row.layers), list(row.tokens))
            for row in self._rows
            if row.uid in uids
        }

    def remove(
        self, uids: Sequence[int], return_prompt_caches: bool = False
    ) -> dict[int, tuple[list[Any], list[int]]]:
        """Drops rows; returns their caches and the tokens these hold, when asked to."""
        gone = [row for row in self._rows if row.uid in uids]
        self._rows = [row for row in self._rows if row.uid not in uids]
        return {row.uid: (row.layers, row.tokens) for row in gone} if return_prompt_caches else {}

    @property
    def prompt_cache_nbytes(self) -> int:
        return sum(int(layer.nbytes) for row in self._rows for layer in row.layers)

    def close(self) -> None:
        self._rows.clear()

    def _forward(self, row: _Row, count: int) -> Any:
        fed, row.pending = row.pending[:count], row.pending[count:]
        logits = self._model(mx.array([fed]), cache=row.layers)
        row.tokens += fed
        return logits

    def _prefill(self, row: _Row) -> PromptResponse:
        done = row.total - len(row.pending)
        stop = next((stop for stop in row.stops if stop > done), row.total)
        done += min(self.prefill_step_size, len(row.pending) - 1, stop - done)
        self._forward(row, done - (row.total - len(row.pending)))
        mx.eval([layer.state for layer in row.layers])
        mx.clear_cache()
        return PromptResponse(row.uid, (done, row.total), False, done == stop)

    def _decode(self, row: _Row) -> TokenResponse:
        logits = self._forward(row, 1)[:, -1, :]
        if row.processors:
            tokens = mx.array(row.tokens)
            for processor in row.processors:
                logits = processor(tokens, logits)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        token = int(row.sampler(logprobs).item())
        row.pending = [token]
        row.generated += 1
        reason = "length" if row.generated >= row.max_tokens else None
        if token in self._stop_tokens:
            reason = "stop"
        if reason is None:
            return TokenResponse(row.uid, token, logprobs[0], None)
        self._rows.remove(row)
        return TokenResponse(row.uid, token, logprobs[0], reason, row.layers, row.tokens)
