"""Figures of samples. Pure; all times in seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.bench.client import Sample


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some values: how many, the least, the middle, the mean, the tail, the greatest."""

    count: int
    min: float
    p50: float
    mean: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Of requests that ran together; rates are per second of `wall_s`."""

    requests: int
    failed: int
    errors: dict[str, int]
    wall_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    gap_s: Spread | None
    duration_s: Spread | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens_per_s: float
    requests_per_s: float

    @property
    def failure_rate(self) -> float:
        return self.failed / self.requests if self.requests else 0.0


def percentile(values: Sequence[float], fraction: float) -> float:
    """By the nearest rank of sorted values: the least that `fraction` of them do not exceed.

    Raises `ValueError` without values.
    """
    if not values:
        raise ValueError("there are no values")
    return values[max(0, math.ceil(fraction * len(values)) - 1)]


def spread(values: Sequence[float]) -> Spread | None:
    """None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        count=len(ordered),
        min=ordered[0],
        p50=percentile(ordered, 0.5),
        mean=math.fsum(ordered) / len(ordered),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def summary(samples: Sequence[Sample], wall_s: float) -> Summary:
    """Times are of complete answers only; tokens too."""
    complete = [sample for sample in samples if sample.ok]
    errors = Counter(sample.error for sample in samples if sample.error is not None)
    tokens = sum(sample.completion_tokens for sample in complete)
    return Summary(
        requests=len(samples),
        failed=len(samples) - len(complete),
        errors=dict(sorted(errors.items())),
        wall_s=wall_s,
        ttft_s=spread([sample.ttft_s for sample in complete if sample.ttft_s is not None]),
        tpot_s=spread([sample.tpot_s for sample in complete if sample.tpot_s is not None]),
        gap_s=spread([gap for sample in complete for gap in sample.gaps_s]),
        duration_s=spread([sample.duration_s for sample in complete]),
        prompt_tokens=sum(sample.prompt_tokens for sample in complete),
        cached_tokens=sum(sample.cached_tokens for sample in complete),
        completion_tokens=tokens,
        tokens_per_s=tokens / wall_s if wall_s > 0 else 0.0,
        requests_per_s=len(complete) / wall_s if wall_s > 0 else 0.0,
    )
