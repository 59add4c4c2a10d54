"""Rate limits: one token bucket for each key.

`Buckets` owns the state, which a reload keeps; it is bounded by the number of keys in force.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """`tokens` were left at `at` (seconds, monotonic); it fills with `per_minute`, to as many."""

    tokens: float
    at: float
    per_minute: int

    def take(self, now: float, per_minute: int) -> tuple[Bucket, float]:
        """The bucket afterwards, and the seconds until there is a token: 0 when one was taken.

        A changed rate counts from now on; a clock that stands still or goes back fills nothing.
        """
        passed = max(0.0, now - self.at)
        tokens = min(per_minute, self.tokens + passed * self.per_minute / 60)
        if tokens < 1:
            return Bucket(tokens, now, per_minute), (1 - tokens) * 60 / per_minute
        return Bucket(tokens - 1, now, per_minute), 0.0


class Buckets:
    """The buckets by the names of their keys."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}

    def take(self, name: str, per_minute: int, now: float) -> float:
        """Takes one token of this key; the seconds until there is one, 0 when it was taken."""
        full = Bucket(per_minute, now, per_minute)
        self._buckets[name], wait_s = self._buckets.get(name, full).take(now, per_minute)
        return wait_s

    def keep_only(self, names: Collection[str]) -> None:
        """Forgets keys that are no longer in force."""
        self._buckets = {name: self._buckets[name] for name in self._buckets.keys() & set(names)}
