"""The scheduler's state and the few acts that change it; each act emits its effects.

One `Core` belongs to one `Scheduler`. The other modules of the package decide when to act.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.errors import Refusal
from gateway.residency.effects import (
    CancelLeases,
    CancelLoad,
    Effect,
    Forgotten,
    Grant,
    Reject,
    SetLimits,
    StartLoad,
    Stop,
    StopReason,
)
from gateway.residency.ledger import STRANDED_S, Ledger
from gateway.residency.slot import Drain, Lease, Slot
from gateway.residency.specs import ModelSpec, Policy, Pressure, unique_names
from gateway.residency.states import ALIVE, State
from gateway.residency.waiters import Waiter, WaitQueue


@dataclass(frozen=True, slots=True)
class Hold:
    """While somebody who has waited for long needs their room, `victims` grant nothing new."""

    beneficiary: str
    victims: frozenset[str]


def new_slot(spec: ModelSpec) -> Slot:
    state = State.UNLOADED if spec.unavailable is None else State.UNAVAILABLE
    return Slot(spec, state, reason=spec.unavailable)


class Core:
    def __init__(self, policy: Policy, models: Sequence[ModelSpec]) -> None:
        unique_names(models)
        self.policy = policy
        self.ledger = Ledger(policy.budget_bytes)
        self.queue = WaitQueue(policy.max_wait_s)
        self.slots: dict[str, Slot] = {}
        for spec in models:
            self.slots[spec.name] = new_slot(spec)
        self.hold: Hold | None = None
        self.pressure: Pressure = "normal"
        self.pressure_step_at: float | None = None
        self.timer: float | None = None
        self._seq = 0
        self._effects: list[Effect] = []

    # --- effects and questions ---------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """What has been emitted since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def alive(self) -> Iterator[Slot]:
        """Models with a process."""
        return (slot for slot in self.slots.values() if slot.state in ALIVE)

    def reservation(self, slot: Slot) -> int:
        """Bytes to reserve for the next load: also what the last load needed beyond its limits."""
        return min(self.policy.budget_bytes, max(slot.spec.charge_bytes, slot.learned_bytes))

    def demand(self, slot: Slot, now: float) -> Waiter | None:
        """Whoever is first to want this model loaded: a request or an operator's wish."""
        head, wish = self.queue.head(slot.name, now), slot.wish
        if head is None or wish is None:
            return head or wish
        return min(head, wish, key=lambda w: w.rank(now, self.policy.max_wait_s))

    def wanted(self, slot: Slot) -> bool:
        return slot.wish is not None or self.queue.count(slot.name) > 0

    def abandoned(self, slot: Slot) -> bool:
        """A load that nobody waits for any more."""
        return slot.state is State.LOADING and not slot.pinned and not self.wanted(slot)

    def settled(self, slot: Slot, now: float) -> bool:
        """Ready for at least `min_resident_s`."""
        return slot.state is State.READY and now >= slot.ready_at + self.policy.min_resident_s

    def ttl_end(self, slot: Slot) -> float | None:
        """When its TTL ends it: counts from the end of the last lease."""
        limit = slot.idle_limit_s
        if limit is None or not slot.idle or self.wanted(slot):
            return None
        return slot.idle_since + limit

    def held(self, slot: Slot, now: float) -> bool:
        """Grants nothing new, because a starved waiter needs its room."""
        hold = self.hold
        return hold is not None and slot.name in hold.victims and self.settled(slot, now)

    # --- a model's life -----------------------------------------------------------------------

    def start_load(self, now: float, slot: Slot) -> None:
        charge = self.reservation(slot)
        self.ledger.reserve(slot.name, charge)
        self.emit(slot.advance(State.LOADING, "wanted"))
        slot.loading_since = now
        slot.loads += 1
        slot.load_done = slot.load_total = slot.measured_bytes = 0
        slot.life = slot.spec
        slot.asked_for = slot.wish is not None
        slot.wish = slot.ticket = None
        self.emit(StartLoad(slot.name, charge))

    def cancel_load(self, slot: Slot, cause: str) -> None:
        self.emit(slot.advance(State.UNLOADING, cause))
        self.emit(CancelLoad(slot.name))

    def ready(self, now: float, slot: Slot, measured: int) -> None:
        self.emit(slot.advance(State.READY, "loaded"))
        slot.reason = None
        slot.ready_at = slot.idle_since = now
        slot.learned_bytes = measured
        self.excuse_loading(now, slot)
        self.measure(slot, measured)
        self.apply_limits(slot)

    def excuse_loading(self, now: float, slot: Slot) -> None:
        """A load is over: the time it took does not count as waiting."""
        for waiter in self.queue.of(slot.name):
            waiter.deadline += now - max(slot.loading_since, waiter.arrived)

    def stop(self, slot: Slot, reason: StopReason) -> None:
        """End a ready or draining model that has no lease."""
        if slot.leases:
            raise ValueError(f"{slot.name!r} has leases and cannot be stopped")
        self.emit(slot.advance(State.UNLOADING, reason))
        slot.drain = None
        if reason not in ("ttl", "requested", "reload"):
            slot.evictions += 1
        self.emit(Stop(slot.name, reason))

    def begin_drain(self, slot: Slot, drain: Drain) -> None:
        """Grant nothing new; stop when the leases are over, which `drain.at` hastens."""
        self.emit(slot.advance(State.DRAINING, drain.why))
        slot.drain = drain

    def cancel_leases(self, slot: Slot, drain: Drain) -> None:
        drain.cancelled = True
        self.emit(CancelLeases(slot.name, tuple(slot.leases), drain.refusal))

    def gone(self, now: float, slot: Slot, stranded: int) -> None:
        """The process is reaped: leases and charge are over, stranded bytes count for a while."""
        charge = self.ledger.release(slot.name)
        self.ledger.strand(slot.name, min(stranded, charge), now + STRANDED_S)
        slot.leases.clear()
        slot.drain = slot.keep_alive_s = None
        slot.measured_bytes = 0
        slot.shrunk = slot.shrink_pending = False

    def unloaded(self, slot: Slot) -> None:
        """It ended as it was told to, and what the registry says now holds from here on."""
        self.emit(slot.advance(State.UNLOADED, "reaped"))
        if slot.removed:
            self.forget(slot)
        else:
            self.follow_availability(slot)

    def forget(self, slot: Slot) -> None:
        """A removed model without a process leaves the books."""
        del self.slots[slot.name]
        self.emit(Forgotten(slot.name))

    def follow_availability(self, slot: Slot) -> None:
        """Without a process, a model is unavailable exactly as long as its spec says so."""
        why = slot.spec.unavailable
        if why is not None and slot.state in (State.UNLOADED, State.FAILED):
            self.emit(slot.advance(State.UNAVAILABLE, why))
        elif why is None and slot.state is State.UNAVAILABLE:
            self.emit(slot.advance(State.UNLOADED, "available again"))
            slot.reason = None
        if slot.state is State.UNAVAILABLE:
            slot.reason = why

    # --- memory --------------------------------------------------------------------------------

    def measure(self, slot: Slot, measured: int) -> None:
        """Charge the larger of the limits and what is really used; a load never lowers it."""
        slot.measured_bytes = measured
        slot.shrink_pending = False
        loading = slot.state is State.LOADING
        floor = self.ledger.charge(slot.name) if loading else slot.reserved_bytes
        self.ledger.measure(slot.name, max(measured, floor))

    def shrink(self, slot: Slot) -> None:
        """Take its prompt cache away.

        The charge falls at once when no more is used than the limits without it, and otherwise
        when a footprint shows what has come back.
        """
        slot.shrunk = True
        slot.shrink_pending = slot.measured_bytes > slot.reserved_bytes
        if not slot.shrink_pending:
            self.ledger.measure(slot.name, slot.reserved_bytes)
        self.emit(SetLimits(slot.name, 0))

    def restore(self, slot: Slot) -> None:
        slot.shrunk = slot.shrink_pending = False
        self.ledger.change(slot.name, max(slot.measured_bytes, slot.reserved_bytes))
        self.emit(SetLimits(slot.name, slot.life.prompt_cache_bytes))

    def apply_limits(self, slot: Slot) -> None:
        """Charge a running process by the limits of its newest spec, and tell it."""
        before, slot.life = slot.life, slot.spec
        now = slot.life
        if (before.charge_bytes, before.prompt_cache_bytes) == (
            now.charge_bytes,
            now.prompt_cache_bytes,
        ):
            return
        self.ledger.change(slot.name, max(slot.measured_bytes, slot.reserved_bytes))
        self.emit(SetLimits(slot.name, 0 if slot.shrunk else now.prompt_cache_bytes))

    # --- requests ------------------------------------------------------------------------------

    def grant(self, now: float, slot: Slot, waiter: Waiter) -> None:
        if waiter.request_id is None:
            raise ValueError("an operator's wish is never granted")
        self.queue.remove(waiter.request_id)
        slot.leases[waiter.request_id] = Lease(waiter.priority, now, waiter.keep_alive_s)
        self.emit(Grant(waiter.request_id, slot.name))

    def reject(self, waiter: Waiter, refusal: Refusal) -> None:
        """Refuse a request, or drop a wish and leave the reason where status shows it."""
        if waiter.request_id is None:
            slot = self.slots[waiter.model]
            slot.wish, slot.reason = None, refusal.message
            return
        self.queue.remove(waiter.request_id)
        self.emit(Reject(waiter.request_id, refusal))

    def reject_all(self, slot: Slot, refusal: Refusal) -> None:
        """Whoever wants this model loaded or waits for its turn."""
        for waiter in self.queue.of(slot.name):
            self.reject(waiter, refusal)
        if slot.wish is not None:
            self.reject(slot.wish, refusal)
