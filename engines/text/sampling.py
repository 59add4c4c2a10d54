"""How the next token is drawn: samplers for mlx-lm's generator.

A sampler takes log-probabilities [rows, vocabulary] and returns tokens [rows]. Rows that share one
sampler object are drawn in one call, so samplers without a seed are cached by their parameters.

Nothing here raises on any request: an exception inside a step would spoil the whole batch. Nothing
is compiled either: MLX keeps every compiled variant, and clients choose the constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mlx.core as mx

from engines import wire

Sampler = Callable[[Any], Any]

_GREEDY_BELOW = 1e-5
"""A lower temperature is greedy: dividing by it would leave the range of float32."""


def sampler_for(sampling: wire.Sampling) -> Sampler:
    """The sampler of one row. A seeded one belongs to its row alone, as its key moves on."""
    if sampling.temperature < _GREEDY_BELOW:
        return greedy
    shape = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    if sampling.seed is None:
        return _shared(*shape)
    return _seeded(sampling.seed, _cut(*shape))


def greedy(logprobs: Any) -> Any:
    """The most probable token."""
    return mx.argmax(logprobs, axis=-1)


@lru_cache(maxsize=256)
def _shared(temperature: float, top_k: int, top_p: float, min_p: float) -> Sampler:
    cut = _cut(temperature, top_k, top_p, min_p)
    return lambda logprobs: mx.random.categorical(cut(logprobs))


def _seeded(seed: int, cut: Sampler) -> Sampler:
    key = mx.random.key(seed % 2**64)

    def sample(logprobs: Any) -> Any:
        nonlocal key
        key, now = mx.random.split(key)
        return mx.random.categorical(cut(logprobs), key=now)

    return sample


def _cut(temperature: float, top_k: int, top_p: float, min_p: float) -> Sampler:
    """Log-probabilities to scaled logits, -inf where a token may not be drawn.

    Temperature, then top-k, top-p, min-p: the order of the Hugging Face warpers. Tokens equal to
    the last one kept are kept too.
    """
    log_min_p = math.log(min(min_p, 1.0)) if min_p > 0 else None

    def cut(logprobs: Any) -> Any:
        # Relative to the best token, so that no temperature can underflow all of them.
        best = mx.max(logprobs, axis=-1, keepdims=True)
        logits = (logprobs - best) * (1.0 / temperature)
        if 0 < top_k < logits.shape[-1]:
            kept = mx.topk(logits, top_k, axis=-1)
            logits = _at_least(logits, mx.min(kept, axis=-1, keepdims=True))
        if top_p < 1:
            logits = _at_least(logits, _nucleus_floor(logits, top_p))
        if log_min_p is not None:
            logits = _at_least(logits, mx.array(log_min_p, logits.dtype))
        return logits

    return cut


def _at_least(logits: Any, floor: Any) -> Any:
    return mx.where(logits < floor, -mx.inf, logits)


def _nucleus_floor(logits: Any, top_p: float) -> Any:
    """The logit of the last token of the smallest set with probability `top_p` or more."""
    ascending = mx.sort(logits, axis=-1)
    probabilities = mx.softmax(ascending.astype(mx.float32), axis=-1)
    above = mx.cumsum(probabilities, axis=-1, reverse=True, inclusive=False)
    # The best token has nothing above it and stays even at top_p 0.
    inside = above < max(top_p, 1e-9)
    return mx.min(mx.where(inside, ascending, mx.inf), axis=-1, keepdims=True)
