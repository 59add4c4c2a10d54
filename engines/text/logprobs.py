"""Log-probabilities of drawn tokens, for the rows that ask for them and for all of those at once.

They are read on MLX's default stream, where they do not wait for the step that is already on its
way on the generator's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class Drawn(NamedTuple):
    """A drawn token's log-probability, and the best tokens with theirs, best first."""

    logprob: float
    best: list[tuple[int, float]]


def drawn(logprobs: Sequence[Any], tokens: Sequence[int], most: int) -> list[Drawn]:
    """For each row's log-probabilities [vocabulary] and drawn token; `most` alternatives each."""
    table = mx.stack(list(logprobs)).astype(mx.float32)
    chosen = mx.take_along_axis(table, mx.array(list(tokens))[:, None], axis=-1)[:, 0]
    most = min(most, table.shape[-1])
    best = mx.argpartition(-table, max(most - 1, 0), axis=-1)[:, :most]
    values = mx.take_along_axis(table, best, axis=-1)
    mx.eval(chosen, best, values)
    rows: Iterable[Any] = zip(*map(_listed, (chosen, best, values)), strict=True)
    return [Drawn(max(value, LOWEST), _ranked(ids, of_ids)) for value, ids, of_ids in rows]


def _listed(array: Any) -> list[Any]:
    values: list[Any] = array.tolist()
    return values


def _ranked(ids: list[int], values: list[float]) -> list[tuple[int, float]]:
    pairs = [(token, max(value, LOWEST)) for token, value in zip(ids, values, strict=True)]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
