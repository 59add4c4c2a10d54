"""What follows every event: settle what is due, serve, make room, then say when to look again."""

from __future__ import annotations

from gateway.residency import admission, refusals, relief
from gateway.residency.core import Core
from gateway.residency.effects import Phase, Waiting
from gateway.residency.slot import Slot
from gateway.residency.states import COLD, State
from gateway.residency.timer import set_timer


def dispatch(core: Core, now: float) -> None:
    """Bring everything up to date at `now`; effects accumulate in the core.

    Grants come before relief and admission, so that a model somebody waits for is never taken for
    idle; and again after them, because a hold may have been lifted. Drains are looked at twice
    because a grace of 0 is over at once.
    """
    _expire_holdings(core, now)
    _refuse_hopeless(core, now)
    _expire(core, now)
    _drain(core, now)
    admission.drop_stale_hold(core)
    _grant_all(core, now)
    _expire_idle(core, now)
    relief.relieve_overrun(core)
    relief.relieve_pressure(core, now)
    admission.admit(core, now)
    _drain(core, now)
    _grant_all(core, now)
    relief.restore_limits(core, now)
    _tell_waiters(core)
    _drop_tickets(core)
    set_timer(core, now)


def _expire_holdings(core: Core, now: float) -> None:
    """Pins and stranded bytes whose time is over."""
    core.ledger.expire(now)
    for slot in core.slots.values():
        if slot.pin_until is not None and now >= slot.pin_until:
            slot.pin_until = None


def _refuse_hopeless(core: Core, now: float) -> None:
    """A new registry may have made a model too large, or unavailable, for those who wait for it."""
    for slot in core.slots.values():
        if slot.state not in COLD and slot.state is not State.UNAVAILABLE:
            continue
        refusal = refusals.never(core, slot)
        if refusal is not None:
            core.reject_all(slot, refusal)


def _expire(core: Core, now: float) -> None:
    """Refuse whoever has waited `wait_timeout_s` without their load having started."""
    for waiter in core.queue:
        slot = core.slots[waiter.model]
        if slot.state is not State.LOADING and now >= waiter.deadline:
            core.reject(waiter, refusals.timed_out(core, now, slot))
    for slot in core.slots.values():
        if slot.wish is not None and now >= slot.wish.deadline:
            core.reject(slot.wish, refusals.timed_out(core, now, slot))


def _drain(core: Core, now: float) -> None:
    """Stop what has drained, end what may drain no longer, let stay what need not leave."""
    for slot in core.slots.values():
        drain = slot.drain
        if drain is None:
            continue
        if not slot.leases:
            core.stop(slot, drain.why)
        elif drain.cancelled:
            continue
        elif (why := _why_stay(core, slot, drain.beneficiary)) is not None:
            slot.drain = slot.wish = None
            core.emit(slot.advance(State.READY, why))
        elif now >= drain.at:
            core.cancel_leases(slot, drain)


def _why_stay(core: Core, slot: Slot, beneficiary: str | None) -> str | None:
    """Why a preemption that has ended no call yet is called off; None when it goes on."""
    if beneficiary is None:
        return None
    if slot.pinned:
        return "pinned"
    if not core.policy.preempts:
        return f"policy {core.policy.strategy} does not preempt"
    return None if _wants_room(core, beneficiary) else f"{beneficiary} needs no room any more"


def _wants_room(core: Core, model: str) -> bool:
    slot = core.slots.get(model)
    return slot is not None and slot.state in COLD and core.wanted(slot)


def _grant_all(core: Core, now: float) -> None:
    for slot in core.slots.values():
        if slot.state is not State.READY or core.held(slot, now):
            continue
        while len(slot.leases) < slot.spec.max_concurrency:
            waiter = core.queue.head(slot.name, now)
            if waiter is None:
                break
            core.grant(now, slot, waiter)


def _expire_idle(core: Core, now: float) -> None:
    for slot in core.slots.values():
        at = core.ttl_end(slot)
        if at is not None and now >= at:
            core.stop(slot, "ttl")


def _tell_waiters(core: Core) -> None:
    for waiter in core.queue:
        loading = core.slots[waiter.model].state is State.LOADING
        phase = Phase.LOADING if loading else Phase.ROOM
        if phase is not waiter.phase and waiter.request_id is not None:
            waiter.phase = phase
            core.emit(Waiting(waiter.request_id, phase))


def _drop_tickets(core: Core) -> None:
    for slot in core.slots.values():
        if slot.ticket is not None and not core.wanted(slot):
            slot.ticket = None
