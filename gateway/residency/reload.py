"""Applying a new registry, in one step: who is gone, who starts anew, who goes on changed.

Nothing here waits: a process that has to end is told to, and its model lives on in the books until
it is reaped. `dispatch` then treats what has changed like any other event.
"""

from __future__ import annotations

import math

from gateway.errors import Refusal
from gateway.residency import refusals
from gateway.residency.core import Core, new_slot
from gateway.residency.slot import Drain, Slot
from gateway.residency.specs import ModelSpec, Policy, RegistryDiff
from gateway.residency.states import ALIVE, State
from gateway.residency.waiters import Waiter


def apply(core: Core, now: float, diff: RegistryDiff) -> None:
    _set_policy(core, diff.policy)
    listed: dict[str, Slot] = {}
    for spec in diff.models:
        slot = core.slots.get(spec.name)
        if slot is None:
            slot = new_slot(spec)
        elif slot.removed:
            _bring_back(core, now, slot, spec)
        elif spec.name in diff.restarted:
            _restart(core, now, slot, spec)
        else:
            _keep(core, slot, spec)
        listed[spec.name] = slot
    gone = [slot for slot in core.slots.values() if slot.name not in listed]
    core.slots = listed | {slot.name: slot for slot in gone}
    for slot in gone:
        if not slot.removed:
            _remove(core, now, slot)


def _set_policy(core: Core, policy: Policy) -> None:
    """Whoever waits keeps its arrival, and its deadline follows the new time-out."""
    longer = policy.wait_timeout_s - core.policy.wait_timeout_s
    for waiter in core.queue:
        waiter.deadline += longer
    for slot in core.slots.values():
        if slot.wish is not None:
            slot.wish.deadline += longer
    core.policy = policy
    core.ledger.set_budget(policy.budget_bytes)
    core.queue.max_wait_s = policy.max_wait_s


def _keep(core: Core, slot: Slot, spec: ModelSpec) -> None:
    slot.spec = spec
    core.follow_availability(slot)
    # A load was told the limits from before: it gets the new ones when it is ready.
    if slot.state in (State.READY, State.DRAINING) and not slot.outdated:
        core.apply_limits(slot)


def _restart(core: Core, now: float, slot: Slot, spec: ModelSpec) -> None:
    resident = slot.state in (State.LOADING, State.READY, State.FAILED)
    if slot.wish is None and resident and (slot.asked_for or slot.pinned):
        slot.wish = Waiter(
            None, slot.name, spec.priority, core.next_seq(), now, math.inf, may_evict=False
        )
    if slot.state is State.LOADING:
        core.excuse_loading(now, slot)
    _end_life(core, now, slot, refusals.restarted(slot))
    _begin_anew(core, now, slot, spec)


def _bring_back(core: Core, now: float, slot: Slot, spec: ModelSpec) -> None:
    """The name of a removed model is there again while its old process still leaves."""
    slot.removed = False
    _begin_anew(core, now, slot, spec)


def _begin_anew(core: Core, now: float, slot: Slot, spec: ModelSpec) -> None:
    """What the old spec has taught does not hold for the new one."""
    slot.spec = spec
    slot.forgive(now)
    slot.learned_bytes = 0
    if slot.state is State.FAILED:
        core.emit(slot.advance(State.UNLOADED, "changed in the registry"))
    if slot.state not in ALIVE:
        slot.reason = None
    core.follow_availability(slot)


def _remove(core: Core, now: float, slot: Slot) -> None:
    slot.removed = True
    slot.asked_for = False
    slot.pin_until = None
    core.reject_all(slot, refusals.not_found_any_more(slot))
    _end_life(core, now, slot, refusals.removed(slot))
    if slot.state not in ALIVE:
        core.forget(slot)


def _end_life(core: Core, now: float, slot: Slot, refusal: Refusal) -> None:
    """End the process, if there is one: at once, or when its leases are over or out of time."""
    at = now + core.policy.drain_max_s
    if slot.state is State.LOADING:
        core.cancel_load(slot, "reload")
    elif slot.idle:
        core.stop(slot, "reload")
    elif slot.busy:
        core.begin_drain(slot, Drain(at, "reload", refusal))
    elif slot.drain is not None:
        # It was leaving already: no later than before, and now for good.
        cancelled = slot.drain.cancelled
        slot.drain = Drain(min(at, slot.drain.at), "reload", refusal, cancelled=cancelled)
