"""Why a request is refused, in words for the person who reads the error."""

from __future__ import annotations

import math

from gateway.errors import (
    LoadFailed,
    ModelNotFound,
    ModelTooLarge,
    ModelUnavailable,
    NoCapacity,
    Preempted,
    QueueFull,
    Refusal,
)
from gateway.residency.core import Core
from gateway.residency.slot import Slot
from gateway.residency.states import COLD, State
from gateway.residency.text import calls, seconds, size

MAX_ESTIMATE_S = 60


def not_found(model: str) -> Refusal:
    return Refusal(ModelNotFound, f"There is no model {model!r}.")


def at_once(core: Core, now: float, slot: Slot) -> Refusal | None:
    """Why a request for this model cannot even wait; None when it can."""
    spec = slot.spec
    refusal = never(core, slot)
    if refusal is not None:
        return refusal
    if slot.state is State.FAILED and now < slot.failed_until:
        return load_failed(now, slot)
    # While an outdated process leaves, its calls do not count against the queue for the next.
    running = 0 if slot.outdated else len(slot.leases)
    if running + core.queue.count(slot.name) >= spec.max_concurrency + spec.max_queue:
        return queue_full(core, now, slot)
    return _pinned_out(core, now, slot)


def never(core: Core, slot: Slot) -> Refusal | None:
    """Why no waiting helps until the operator changes something; None when it may help."""
    spec = slot.spec
    if spec.unavailable is not None and slot.state not in (State.LOADING, State.READY):
        return Refusal(ModelUnavailable, f"Model {slot.name!r} is unavailable: {spec.unavailable}")
    if spec.charge_bytes <= core.policy.budget_bytes:
        return None
    message = (
        f"Model {slot.name!r} needs {size(spec.charge_bytes)}, which is more than the whole "
        f"memory budget of {size(core.policy.budget_bytes)}. Raise the budget or lower its "
        "context length or cache limits."
    )
    return Refusal(ModelTooLarge, message)


def _pinned_out(core: Core, now: float, slot: Slot) -> Refusal | None:
    """For a cold model whose room is taken by models that stay for as long as anybody may wait."""
    if slot.state not in COLD:
        return None
    end = now + core.policy.wait_timeout_s
    staying = [other for other in core.alive() if other is not slot and _stays(other, end)]
    taken = sum(core.ledger.charge(other.name) for other in staying)
    fits = core.reservation(slot) + taken <= core.policy.budget_bytes
    if fits and len(staying) < core.policy.max_engines:
        return None
    why = f"pinned models leave none, so policy {core.policy.strategy} gave up at once"
    return _no_room(core, now, slot, why)


def _stays(slot: Slot, until: float) -> bool:
    if slot.state not in (State.LOADING, State.READY) or slot.removed:
        return False
    return slot.spec.pin or (slot.pin_until is not None and slot.pin_until > until)


def load_failed(now: float, slot: Slot) -> Refusal:
    """The cause of the last fault, and when it is worth trying again."""
    message = f"Model {slot.name!r} has failed: {slot.reason}"
    return Refusal(LoadFailed, message, seconds(slot.failed_until - now))


def queue_full(core: Core, now: float, slot: Slot) -> Refusal:
    waiting = core.queue.count(slot.name)
    message = (
        f"Model {slot.name!r} has {calls(len(slot.leases))} (limit {slot.spec.max_concurrency}) "
        f"and {waiting} waiting (limit {slot.spec.max_queue})."
    )
    retry = _turn(core, now, slot)
    if slot.state is not State.LOADING and waiting:
        # A place is free at the latest when the first of them gives up.
        first = min(waiter.deadline for waiter in core.queue.of(slot.name))
        retry = min(retry, seconds(first - now))
    return Refusal(QueueFull, message, retry)


def timed_out(core: Core, now: float, slot: Slot) -> Refusal:
    """For a waiter whose `wait_timeout_s` is over."""
    waited = f"after waiting {core.policy.wait_timeout_s:g} s"
    if slot.state is State.FAILED and now < slot.failed_until:
        return load_failed(now, slot)
    if slot.state is State.READY:
        message = f"Model {slot.name!r} was still busy {waited}: {calls(len(slot.leases))}"
        if core.hold is not None and core.held(slot, now):
            message += f", and model {core.hold.beneficiary!r}, which has waited longer, is next"
        return Refusal(QueueFull, message + ".", _turn(core, now, slot))
    return no_capacity(core, now, slot, waited)


def no_capacity(core: Core, now: float, slot: Slot, when: str) -> Refusal:
    """Names the policy, what is in the way and until when. `when`: "at once" or after how long."""
    return _no_room(core, now, slot, f"policy {core.policy.strategy} gave up {when}")


def no_free_room(core: Core, now: float, slot: Slot) -> Refusal:
    """For whoever may not have others leave."""
    strategy = core.policy.strategy
    why = f"nothing may be evicted for this request, so policy {strategy} does not apply"
    return _no_room(core, now, slot, why)


def _no_room(core: Core, now: float, slot: Slot, why: str) -> Refusal:
    others = sorted(core.alive(), key=lambda other: -core.ledger.charge(other.name))
    in_the_way = ", ".join(_blocker(core, now, other) for other in others) or "no other model"
    if core.ledger.stranded:
        in_the_way += f"; {size(core.ledger.stranded)} that ended models have not given back yet"
    if core.pressure != "normal":
        in_the_way += f"; the system reports {core.pressure} memory pressure"
    message = (
        f"No room for model {slot.name!r} ({size(core.reservation(slot))} of a budget of "
        f"{size(core.policy.budget_bytes)}); {why}. In the way: {in_the_way}."
    )
    moments = [_frees_in(core, now, other) for other in others]
    if core.ledger.stranded_until is not None:
        moments.append(seconds(core.ledger.stranded_until - now))
    return Refusal(NoCapacity, message, min(moments, default=1))


def preempted(victim: Slot, beneficiary: str) -> Refusal:
    message = f"Model {victim.name!r} had to make room for model {beneficiary!r}; the call ended."
    return Refusal(Preempted, message, 1)


def pressed(victim: Slot) -> Refusal:
    message = f"Model {victim.name!r} was ended because the system is critically short of memory."
    return Refusal(Preempted, message, 10)


def unloaded(victim: Slot) -> Refusal:
    return Refusal(Preempted, f"Model {victim.name!r} was unloaded by the operator.", 1)


def not_found_any_more(slot: Slot) -> Refusal:
    return Refusal(ModelNotFound, f"Model {slot.name!r} was removed from the registry.")


def removed(victim: Slot) -> Refusal:
    message = f"Model {victim.name!r} was removed from the registry; the call ended."
    return Refusal(Preempted, message)


def restarted(victim: Slot) -> Refusal:
    message = f"Model {victim.name!r} was changed in the registry and restarts; the call ended."
    return Refusal(Preempted, message, _load_s(victim))


def _turn(core: Core, now: float, slot: Slot) -> int:
    """Estimated seconds until all who wait now have been served, and one more could be."""
    rounds = (core.queue.count(slot.name) + 1) / slot.spec.max_concurrency
    estimate = slot.service_s * rounds
    if slot.state is not State.READY:
        estimate += slot.load_left(now) or 0
    return min(MAX_ESTIMATE_S, seconds(estimate))


def _load_s(slot: Slot) -> int:
    return min(MAX_ESTIMATE_S, seconds(slot.spec.expected_load_s or 0))


def _blocker(core: Core, now: float, slot: Slot) -> str:
    traits = [size(core.ledger.charge(slot.name)), str(slot.state)]
    if slot.pinned:
        traits.append(_pinned(slot, now))
    if slot.leases:
        traits.append(calls(len(slot.leases)))
    kept = slot.ready_at + core.policy.min_resident_s - now
    if slot.idle and kept > 0:
        traits.append(f"kept for {seconds(kept)} s more")
    if slot.drain is not None and slot.drain.at > now:
        traits.append(f"leaves within {seconds(slot.drain.at - now)} s")
    return f"{slot.name!r} ({', '.join(traits)})"


def _pinned(slot: Slot, now: float) -> str:
    until = slot.pin_until
    if slot.spec.pin or until is None or until == math.inf:
        return "pinned"
    return f"pinned for {seconds(until - now)} s more"


def _frees_in(core: Core, now: float, slot: Slot) -> int:
    """Estimated seconds until this model could leave."""
    if slot.drain is not None:
        return seconds(slot.drain.at - now)
    left = slot.load_left(now)
    if slot.state is State.LOADING and left is not None:
        return min(MAX_ESTIMATE_S, seconds(left + core.policy.min_resident_s))
    if slot.pinned or slot.state is State.LOADING:
        return MAX_ESTIMATE_S // 4
    until = slot.ready_at + core.policy.min_resident_s
    if slot.leases:
        newest = max(lease.since for lease in slot.leases.values())
        until = max(until, newest + slot.service_s)
    return min(MAX_ESTIMATE_S, seconds(until - now))
