"""What a sampler may draw, and that a seed decides it."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from engines import wire
from engines.text.sampling import greedy, sampler_for

PROBABILITIES = [0.4, 0.3, 0.15, 0.1, 0.05]
DRAWS = 400


def logprobs(rows: int = DRAWS) -> mx.array:
    return mx.broadcast_to(mx.log(mx.array(PROBABILITIES)), (rows, len(PROBABILITIES)))


def drawn(sampling: wire.Sampling) -> list[int]:
    tokens: list[int] = sampler_for(sampling)(logprobs()).tolist()
    return tokens


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (wire.Sampling(), {0, 1, 2, 3, 4}),
        (wire.Sampling(temperature=0.0), {0}),
        (wire.Sampling(temperature=1e-9), {0}),
        (wire.Sampling(top_k=2), {0, 1}),
        (wire.Sampling(top_k=1), {0}),
        (wire.Sampling(top_k=5), {0, 1, 2, 3, 4}),
        (wire.Sampling(top_k=10**6), {0, 1, 2, 3, 4}),
        (wire.Sampling(top_p=0.39), {0}),
        (wire.Sampling(top_p=0.5), {0, 1}),
        (wire.Sampling(top_p=0.0), {0}),
        (wire.Sampling(min_p=0.5), {0, 1}),
        (wire.Sampling(min_p=1.0), {0}),
        (wire.Sampling(top_k=4, top_p=0.8), {0, 1, 2}),
        # The temperature comes first: at 4 the five are nearly even, so 0.5 takes three.
        (wire.Sampling(temperature=4.0, top_p=0.5), {0, 1, 2}),
        (wire.Sampling(temperature=0.01, top_p=0.99, min_p=0.01), {0}),
    ],
)
def test_only_possible_tokens_and_all_of_them(sampling: wire.Sampling, possible: set[int]) -> None:
    assert set(drawn(sampling)) == possible


def test_frequencies_follow_the_temperature() -> None:
    tokens = drawn(wire.Sampling(temperature=2.0, seed=1))
    weights = [math.sqrt(probability) for probability in PROBABILITIES]
    for token, weight in enumerate(weights):
        assert tokens.count(token) / DRAWS == pytest.approx(weight / sum(weights), abs=0.08)


def test_rows_without_a_seed_share_one_sampler() -> None:
    assert sampler_for(wire.Sampling(top_p=0.9)) is sampler_for(wire.Sampling(top_p=0.9))
    assert sampler_for(wire.Sampling(top_p=0.9)) is not sampler_for(wire.Sampling(top_p=0.8))
    assert sampler_for(wire.Sampling(temperature=0.0, top_k=3)) is greedy


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, 2**70])
def test_a_seed_decides_every_draw(seed: int) -> None:
    one, two = (sampler_for(wire.Sampling(seed=seed)) for _ in range(2))
    first = [one(logprobs(1)).item() for _ in range(20)]
    assert first == [two(logprobs(1)).item() for _ in range(20)]
    assert len(set(first)) > 1


def test_different_seeds_differ() -> None:
    assert drawn(wire.Sampling(seed=1)) != drawn(wire.Sampling(seed=2))
