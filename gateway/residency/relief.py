"""Giving memory back when more is used than may be: measured overruns and outside pressure.

Idle models are shrunk, then stopped. Models in use are ended only under critical pressure, one at
a time, after the usual grace.
"""

from __future__ import annotations

from gateway.residency import refusals
from gateway.residency.core import Core
from gateway.residency.effects import StopReason
from gateway.residency.eviction import Need, Victim, choose_in_turn
from gateway.residency.slot import Drain, Slot
from gateway.residency.states import LEAVING, State

PRESSURE_STEP_S = 1.0
"""Between two steps under pressure, so that the system's figure can follow the first."""


def relieve_overrun(core: Core) -> None:
    """While a measurement has taken the ledger over the budget: shrink, then stop what is idle."""
    if core.ledger.free >= 0:
        return
    missing = -core.ledger.free - _on_its_way(core)
    for slot in _shrinkable(core):
        if missing <= 0:
            return
        core.shrink(slot)
        missing -= slot.life.prompt_cache_bytes
    if missing <= 0:
        return
    loads, idle = _abandoned(core), _idle(core)
    groups = [[_victim(core, slot) for slot in group] for group in (loads, idle)]
    chosen = choose_in_turn(groups, Need(missing))
    names = {victim.name for victim in chosen or groups[0] + groups[1]}
    _end(core, [slot for slot in loads + idle if slot.name in names], "overrun")


def relieve_pressure(core: Core, now: float) -> None:
    """One step, if one is due and there is anything to give."""
    if core.pressure == "normal":
        core.pressure_step_at = None
        return
    if core.pressure_step_at is not None and now < core.pressure_step_at:
        return
    acted = _warning_step(core) if core.pressure == "warning" else _critical_step(core, now)
    core.pressure_step_at = now + PRESSURE_STEP_S if acted else None


def restore_limits(core: Core, now: float) -> None:
    """Give busy models their prompt cache back once nobody needs the room more."""
    if core.pressure != "normal" or core.ledger.free < 0:
        return
    if any(core.wanted(slot) for slot in core.slots.values() if slot.state is not State.READY):
        return
    for slot in core.slots.values():
        if slot.busy and slot.shrunk:
            full = max(slot.measured_bytes, slot.life.charge_bytes)
            if full - core.ledger.charge(slot.name) <= core.ledger.free:
                core.restore(slot)


def _warning_step(core: Core) -> bool:
    shrinkable = _shrinkable(core)
    for slot in shrinkable:
        core.shrink(slot)
    if shrinkable or _leaving(core):
        return True
    victims = _abandoned(core) or _idle(core)[:1]
    _end(core, victims, "pressure")
    return bool(victims)


def _critical_step(core: Core, now: float) -> bool:
    victims = _abandoned(core) + _idle(core)
    if not victims and not _leaving(core):
        victims = [slot for slot in core.slots.values() if slot.idle]
    _end(core, victims, "pressure")
    if victims or _leaving(core):
        return True
    busy = sorted(
        (slot for slot in core.slots.values() if slot.busy),
        key=lambda slot: (slot.pinned, *slot.importance()),
    )
    for slot in busy[:1]:
        at = now + core.policy.preempt_grace_s
        core.begin_drain(slot, Drain(at, "pressure", refusals.pressed(slot)))
    return bool(busy)


def _idle(core: Core) -> list[Slot]:
    """Idle unpinned models, least recently used first."""
    idle = (slot for slot in core.slots.values() if slot.idle and not slot.pinned)
    return sorted(idle, key=lambda slot: slot.idle_since)


def _abandoned(core: Core) -> list[Slot]:
    return [slot for slot in core.slots.values() if core.abandoned(slot)]


def _shrinkable(core: Core) -> list[Slot]:
    """Idle models that still have a prompt cache, pinned ones too, least recently used first."""
    idle = (
        slot
        for slot in core.slots.values()
        if slot.idle and not slot.shrunk and slot.life.prompt_cache_bytes
    )
    return sorted(idle, key=lambda slot: slot.idle_since)


def _leaving(core: Core) -> bool:
    return any(slot.state in LEAVING for slot in core.slots.values())


def _on_its_way(core: Core) -> int:
    """Bytes that earlier effects will bring back."""
    total = 0
    for slot in core.slots.values():
        if slot.state in LEAVING:
            total += core.ledger.charge(slot.name)
        else:
            total += slot.returning_bytes
    return total


def _victim(core: Core, slot: Slot) -> Victim:
    return Victim(slot.name, core.ledger.charge(slot.name))


def _end(core: Core, victims: list[Slot], reason: StopReason) -> None:
    for slot in victims:
        if slot.state is State.LOADING:
            core.cancel_load(slot, reason)
        else:
            core.stop(slot, reason)
