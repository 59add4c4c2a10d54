"""The one timer: the earliest moment at which time alone changes a decision."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gateway.residency.core import Core
from gateway.residency.effects import SetTimer
from gateway.residency.slot import Slot
from gateway.residency.states import COLD, State


def set_timer(core: Core, now: float) -> None:
    """Emit `SetTimer` when that moment has changed."""
    # A pin or a keep-alive without an end is at infinity.
    at = min((moment for moment in _moments(core) if now < moment < math.inf), default=None)
    if at != core.timer:
        core.timer = at
        core.emit(SetTimer(at))


def _moments(core: Core) -> Iterator[float]:
    blocked = False
    for slot in core.slots.values():
        yield from _own(core, slot)
        if slot.state in COLD and core.wanted(slot):
            blocked = True
            yield from _while_blocked(core, slot)
    if blocked:
        ready = (slot for slot in core.slots.values() if slot.state is State.READY)
        yield from (slot.ready_at + core.policy.min_resident_s for slot in ready)
    if core.pressure_step_at is not None:
        yield core.pressure_step_at
    if core.ledger.stranded_until is not None:
        yield core.ledger.stranded_until


def _own(core: Core, slot: Slot) -> Iterator[float]:
    if slot.state is not State.LOADING:
        yield from (waiter.deadline for waiter in core.queue.of(slot.name))
    if slot.wish is not None:
        yield slot.wish.deadline
    if slot.drain is not None and not slot.drain.cancelled:
        yield slot.drain.at
    if slot.pin_until is not None:
        yield slot.pin_until
    ttl_end = core.ttl_end(slot)
    if ttl_end is not None:
        yield ttl_end


def _while_blocked(core: Core, slot: Slot) -> Iterator[float]:
    if slot.state is State.FAILED:
        yield slot.failed_until
    for waiter in core.queue.of(slot.name):
        yield waiter.arrived + core.policy.max_wait_s
        if core.policy.strategy == "wait_then_preempt":
            yield waiter.arrived + core.policy.preempt_after_s
