"""From the vectors of a text's tokens to the vector of the text.

As sentence-transformers defines it (`sentence_transformers.models.Pooling`), in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from engines.vectors.sentence import Mode, Pooling

_LEAST = 1e-9


def pool(hidden: mx.array, mask: mx.array, pooling: Pooling) -> mx.array:
    """`hidden` is [rows, tokens, size], `mask` [rows, tokens] with 1 where a token counts.

    Returns [rows, size x modes]. Rows are padded on the right, and each has a token that counts.
    """
    hidden = hidden.astype(mx.float32)
    pooled = [_POOL[mode](hidden, mask.astype(mx.float32)) for mode in pooling.modes]
    return pooled[0] if len(pooled) == 1 else mx.concatenate(pooled, axis=-1)


def normalised(vectors: mx.array) -> mx.array:
    """`vectors` [rows, size] with length 1."""
    lengths = mx.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / mx.maximum(lengths, 1e-12)


def _cls(hidden: mx.array, mask: mx.array) -> mx.array:
    return hidden[:, 0]


def _last(hidden: mx.array, mask: mx.array) -> mx.array:
    return _at(hidden, mask.shape[1] - 1 - mx.argmax(mask[:, ::-1], axis=1))


def _at(hidden: mx.array, positions: mx.array) -> mx.array:
    return hidden[mx.arange(hidden.shape[0]), positions]


def _max(hidden: mx.array, mask: mx.array) -> mx.array:
    return mx.max(mx.where(mask[..., None] > 0, hidden, -mx.inf), axis=1)


def _mean(hidden: mx.array, mask: mx.array) -> mx.array:
    return _sum(hidden, mask) / mx.maximum(_count(mask), _LEAST)


def _mean_sqrt(hidden: mx.array, mask: mx.array) -> mx.array:
    return _sum(hidden, mask) / mx.sqrt(mx.maximum(_count(mask), _LEAST))


def _weighted_mean(hidden: mx.array, mask: mx.array) -> mx.array:
    return _mean(hidden, mask * mx.arange(1, mask.shape[1] + 1))


def _sum(hidden: mx.array, mask: mx.array) -> mx.array:
    return mx.sum(hidden * mask[..., None], axis=1)


def _count(mask: mx.array) -> mx.array:
    return mx.sum(mask, axis=1, keepdims=True)


_POOL: dict[Mode, Callable[[Any, Any], Any]] = {
    "cls": _cls,
    "lasttoken": _last,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
}
