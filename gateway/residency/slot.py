"""What the scheduler remembers of one model between events. Plain data; `core` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.errors import Refusal
from gateway.residency.effects import StopReason, Transition
from gateway.residency.specs import FOREVER, ModelSpec, Priority
from gateway.residency.states import State, advance
from gateway.residency.waiters import Waiter

FIRST_BACKOFF_S = 10.0
MAX_BACKOFF_S = 300.0


@dataclass(frozen=True, slots=True)
class Lease:
    priority: Priority
    since: float
    keep_alive_s: float | None = None


@dataclass(slots=True)
class Drain:
    """Why a model is draining: its leases are cancelled with `refusal` at `at`, once.

    `beneficiary` is the model it makes room for; when that no longer wants room, it may stay.
    """

    at: float
    why: StopReason
    refusal: Refusal
    beneficiary: str | None = None
    cancelled: bool = False


@dataclass(slots=True)
class Slot:
    """One model. Times are on the clock of `now`; see `ModelView` for the counters.

    `spec` is what the registry says, `life` what the process was started with, as live changes
    have left it; they differ while a process from before a reload is on its way out, and while a
    load goes on. `removed` models wait for their process to be reaped.

    `wish` is an operator's wish for a load, `asked_for` says that the last load was one. `ticket`
    is the order in which room began to be made for this model. `shrunk` says that its prompt-cache
    limit is 0, `shrink_pending` that no footprint has confirmed it yet. `pin_until` is the end of
    an operator's pin, infinite when it has none. `keep_alive_s` is what the last lease wished.
    """

    spec: ModelSpec
    state: State
    reason: str | None = None
    leases: dict[int, Lease] = field(default_factory=dict)
    removed: bool = False
    wish: Waiter | None = None
    asked_for: bool = False
    pin_until: float | None = None
    keep_alive_s: float | None = None
    ticket: int | None = None
    drain: Drain | None = None
    measured_bytes: int = 0
    learned_bytes: int = 0
    shrunk: bool = False
    shrink_pending: bool = False
    loads: int = 0
    evictions: int = 0
    failures: int = 0
    failed_until: float = 0.0
    loading_since: float = 0.0
    ready_at: float = 0.0
    idle_since: float = 0.0
    service_s: float = 1.0
    load_done: int = 0
    load_total: int = 0
    name: str = field(init=False)
    life: ModelSpec = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.spec.name
        self.life = self.spec

    @property
    def idle(self) -> bool:
        return self.state is State.READY and not self.leases

    @property
    def busy(self) -> bool:
        return self.state is State.READY and bool(self.leases)

    @property
    def pinned(self) -> bool:
        return self.spec.pin or self.pin_until is not None

    @property
    def outdated(self) -> bool:
        """Its running calls are the last of a process that a new registry ends."""
        return self.drain is not None and self.drain.why == "reload"

    @property
    def idle_limit_s(self) -> float | None:
        """Seconds without a lease after which its TTL ends it; None when none does."""
        if self.pinned or self.keep_alive_s == FOREVER:
            return None
        return self.spec.ttl_s if self.keep_alive_s is None else self.keep_alive_s

    @property
    def reserved_bytes(self) -> int:
        """The charge by its limits, whatever is measured."""
        return self.life.charge_bytes - (self.life.prompt_cache_bytes if self.shrunk else 0)

    @property
    def returning_bytes(self) -> int:
        """What a shrink that no footprint has confirmed yet should bring back."""
        return self.life.prompt_cache_bytes if self.shrink_pending else 0

    def advance(self, to: State, cause: str) -> Transition:
        """The only way a model changes its state."""
        frm = self.state
        self.state = advance(self.name, frm, to)
        return Transition(self.name, frm, to, cause)

    def fail(self, now: float, cause: str) -> Transition:
        """Enter back-off: the first failure after a success costs nothing, then 10 s doubling."""
        transition = self.advance(State.FAILED, cause)
        self.failures += 1
        wait = 0.0
        if self.failures > 1:
            # The exponent is capped because a model may fail for months.
            wait = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self.failures - 2, 10))
        self.failed_until = now + wait
        self.reason = cause
        return transition

    def forgive(self, now: float) -> None:
        """Forget earlier faults: the next load need not wait."""
        self.failures, self.failed_until = 0, now

    def load_left(self, now: float) -> float | None:
        """Expected seconds until a load that runs or begins now is over; None: nobody knows."""
        expected = self.spec.expected_load_s
        if expected is None or self.state is not State.LOADING:
            return expected
        return max(0.0, self.loading_since + expected - now)

    def served(self, lease: Lease, now: float) -> None:
        """A call has ended while the engine lives: the load was a success."""
        self.failures = 0
        self.idle_since = now
        self.keep_alive_s = lease.keep_alive_s
        self.service_s += (now - lease.since - self.service_s) / 4

    def importance(self) -> tuple[int, int, float]:
        """Sort key of busy models: who is hurt least goes first."""
        most_important = min(lease.priority for lease in self.leases.values())
        oldest = min(lease.since for lease in self.leases.values())
        return (-most_important, len(self.leases), oldest)
