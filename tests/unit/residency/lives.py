"""What the auditor writes down: processes, waiters, pins, stranded bytes. Plain accounts."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.residency import ModelSpec, Phase

EPSILON_S = 1e-6
STRANDED_S = 60.0


@dataclass
class Life:
    """One process as the doer sees it. `charge` is what the ledger should hold for it.

    `spec` is what it was last told, `limits_due` that it has to be told again. A new registry has
    given up what is `outdated`.
    """

    spec: ModelSpec
    charge: int
    started: float
    ready: bool = False
    stopping: bool = False
    outdated: bool = False
    ended_calls: bool = False
    shrunk: bool = False
    shrink_pending: bool = False
    limits_due: bool = False
    measured: int = 0
    leases: set[int] = field(default_factory=set)
    idle_since: float = 0.0
    keep_alive_s: float | None = None

    @property
    def limits(self) -> int:
        return self.spec.charge_bytes - self.spec.prompt_cache_bytes * self.shrunk

    @property
    def loading(self) -> bool:
        return not self.ready and not self.stopping

    @property
    def idle_limit_s(self) -> float | None:
        """By its TTL or what the last lease wished; None when neither ends it."""
        limit = self.spec.ttl_s if self.keep_alive_s is None else self.keep_alive_s
        return None if limit is None or limit < 0 else limit

    def take_over(self, spec: ModelSpec) -> None:
        """Live changes reach the engine."""
        before, self.spec = self.spec, spec
        if (before.charge_bytes, before.prompt_cache_bytes) != (
            spec.charge_bytes,
            spec.prompt_cache_bytes,
        ):
            self.limits_due = True
            self.charge = max(self.measured, self.limits)

    def footprint(self, measured: int) -> None:
        self.measured = measured
        self.charge = max(measured, self.limits if self.ready else self.charge)
        self.shrink_pending = False

    def told_limits(self, prompt_cache: int) -> bool:
        """Takes a new limit of the prompt cache; whether it was given back."""
        assert self.ready
        assert not self.stopping
        assert not self.outdated
        if self.limits_due:
            self.limits_due = False
            assert prompt_cache == self.spec.prompt_cache_bytes * (not self.shrunk)
            return False
        restored = self.shrunk
        self.shrunk = not self.shrunk
        if restored:
            assert prompt_cache == self.spec.prompt_cache_bytes
            self.shrink_pending = False
            self.charge = max(self.measured, self.limits)
            return True
        assert prompt_cache == 0
        assert not self.leases, "a model in use was shrunk"
        self.shrink_pending = self.measured > self.limits
        if not self.shrink_pending:
            self.charge = self.limits
        return False


@dataclass
class Pending:
    model: str
    arrived: float
    keep_alive_s: float | None = None
    may_evict: bool = True
    loading_s: float = 0.0
    excused_s: float = 0.0
    """Its load had started when a new registry shortened the time to wait to less than this."""
    phase: Phase | None = None


class Stranded:
    """Bytes that ended processes have left behind, oldest first, each for a minute."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, int, float]] = []

    def add(self, now: float, model: str, count: int) -> None:
        self._entries.append((model, count, now + STRANDED_S))

    def reclaim(self, now: float, model: str, count: int) -> None:
        kept = []
        for name, size, until in self._entries:
            if until <= now:
                continue
            back = min(size, count) if name == model else 0
            count -= back
            kept.append((name, size - back, until))
        self._entries = kept

    def total(self, now: float) -> int:
        return sum(size for _, size, until in self._entries if now < until)
