"""Which rows of which calls go through the model together. Pure: no clock, no model.

A row is one text, as tokens. Rows of a batch are padded to its longest, so a batch costs rows x
longest, and rows of much different lengths do not go together: none is shorter than half of the
longest. Every batch is led by another call, in turns, and what room it leaves goes round
among all calls; so a call of one row waits for at most one batch of each other call, and two long
ones advance alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST_ROWS = 256
"""Of one batch, however short they are."""

LEAST_TOKENS = 256
MOST_TOKENS = 16_384
"""Between these the size of a batch is learned, in padded tokens."""


@dataclass(frozen=True, slots=True)
class Row:
    """Input `index` of its call. `types` are token types, of pairs; the first `prompt` tokens are
    those of a prompt, and of special tokens before it."""

    index: int
    tokens: list[int]
    types: list[int] | None = None
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that live while a batch runs: for each padded token, and for each pair of tokens of
    one row, where attention is not fused."""

    per_token: int
    per_pair: int

    def row(self, tokens: int) -> int:
        return tokens * (self.per_token + tokens * self.per_pair)

    def rows(self, tokens: int, nbytes: int) -> int:
        """How many rows of this length fit; at least one, as a row cannot be cut."""
        return max(1, nbytes // max(1, self.row(tokens)))

    def longest(self, most: int, nbytes: int) -> int:
        """The longest row, up to `most` tokens, that fits into `nbytes` by itself."""
        if self.row(most) <= nbytes:
            return most
        return bisect_right(range(1, most + 1), nbytes, key=self.row)


class Pace:
    """How many padded tokens a batch may have so that it takes about `target_s` seconds."""

    def __init__(self, target_s: float, tokens: int = 512) -> None:
        self._target_s = target_s
        self.tokens = tokens

    def took(self, tokens: int, seconds: float) -> None:
        """Learns from one batch. Grows by a factor of two at most, since the first are slow."""
        fits = round(tokens * self._target_s / max(seconds, 1e-6))
        if tokens < self.tokens // 2 and fits > self.tokens:
            return  # a small batch that was fast says little of a large one
        self.tokens = min(max(fits, LEAST_TOKENS), 2 * self.tokens, MOST_TOKENS)


@dataclass(frozen=True, slots=True)
class Room:
    """What one batch may be: `tokens` with padding, and bytes while it runs."""

    tokens: int
    nbytes: int
    cost: Cost

    def rows(self, longest: int) -> int:
        by_tokens = max(1, self.tokens // longest)
        return min(MOST_ROWS, by_tokens, self.cost.rows(longest, self.nbytes))


Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A call with what is left of it to do, and what is done."""

    def __init__(self, call_id: int, rows: Sequence[Row], submitted_at: float) -> None:
        self.id = call_id
        self.submitted_at = submitted_at
        self.started_at: float | None = None
        self.tokens = sum(len(row.tokens) for row in rows)
        self._left = sorted(rows, key=_length)
        self._results: list[Result | None] = [None] * len(rows)
        self._to_come = len(rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest row that is left; 0 when none is."""
        return len(self._left[-1].tokens) if self._left else 0

    @property
    def left_tokens(self) -> int:
        return sum(len(row.tokens) for row in self._left)

    @property
    def done(self) -> bool:
        return self._to_come == 0

    @property
    def results(self) -> list[Result]:
        """In the order of the inputs. Raises `RuntimeError` before it is done."""
        done = [result for result in self._results if result is not None]
        if len(done) < len(self._results):
            raise RuntimeError(f"call {self.id} has {len(done)} of {len(self._results)} results")
        return done

    def take(self, shortest: int, longest: int) -> Row | None:
        """The longest row that is left within these lengths."""
        at = bisect_right(self._left, longest, key=_length)
        if at and len(self._left[at - 1].tokens) >= shortest:
            return self._left.pop(at - 1)
        return None

    def give_back(self, row: Row) -> None:
        self._left.insert(bisect_right(self._left, len(row.tokens), key=_length), row)

    def set(self, row: Row, result: Result) -> None:
        self._results[row.index] = result
        self._to_come -= 1


Batch = list[tuple[Pending[Result], Row]]


def take_batch(calls: Sequence[Pending[Result]], room: Room) -> Batch[Result]:
    """Takes the next batch out of `calls`, of which the first with rows left leads."""
    calls = [call for call in calls if call.longest]
    if not calls:
        return []
    longest = calls[0].longest
    most = room.rows(longest)
    shortest = -(-longest // 2)
    batch: Batch[Result] = []
    while calls and len(batch) < most:
        for call in tuple(calls):
            row = call.take(shortest, longest) if len(batch) < most else None
            if row is None:
                calls.remove(call)
            else:
                batch.append((call, row))
    return batch


def padded(batch: Batch[Result]) -> int:
    """Tokens of a batch with its padding."""
    return len(batch) * max((len(row.tokens) for _, row in batch), default=0)


def _length(row: Row) -> int:
    return len(row.tokens)
