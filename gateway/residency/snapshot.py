"""Read-only views for status, metrics and `explain`. Advisory: nothing may decide from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.residency.core import Core
from gateway.residency.effects import Phase
from gateway.residency.slot import Slot
from gateway.residency.specs import Pressure, Priority
from gateway.residency.states import State


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model. Bytes and seconds; `idle_s` is None unless it is ready without a lease.

    `reason` is why it failed or is unavailable, or why an asked-for load has not started.
    `failed_until` is on the clock of `now`. `loads` counts starts, `evictions` counts stops by
    contention, pressure, overrun or preemption. `pinned_until` is on the clock of `now`, None for
    a pin without an end and without a pin. `ttl_left_s` is None unless its TTL or a `keep_alive_s`
    will end it. A `removed` model is not in the registry any more and is about to be forgotten.
    `wished` says that an operator's load waits for room or its turn.
    """

    name: str
    state: State
    reason: str | None
    leases: tuple[int, ...]
    running: int
    waiting: int
    charge_bytes: int
    measured_bytes: int
    loads: int
    evictions: int
    failures: int
    idle_s: float | None
    failed_until: float | None
    pinned: bool
    load_done: int
    load_total: int
    pinned_until: float | None = None
    ttl_left_s: float | None = None
    removed: bool = False
    wished: bool = False


@dataclass(frozen=True, slots=True)
class WaiterView:
    request_id: int
    model: str
    priority: Priority
    phase: Phase
    waited_s: float


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Bytes. `available` is never negative; `overcommitted` says why more is taken than there is.

    `stranded` is memory of ended processes that the system has not given back yet.
    """

    budget: int
    committed: int
    available: int
    overcommitted: str | None
    stranded: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    models: tuple[ModelView, ...]
    waiters: tuple[WaiterView, ...]
    ledger: LedgerView
    engines: int
    pressure: Pressure


def take_snapshot(core: Core, now: float) -> Snapshot:
    models = tuple(_model(core, now, slot) for slot in core.slots.values())
    waiters = tuple(
        WaiterView(
            waiter.request_id, waiter.model, waiter.priority, waiter.phase, now - waiter.arrived
        )
        for waiter in core.queue
        if waiter.request_id is not None and waiter.phase is not None
    )
    ledger = LedgerView(
        core.ledger.budget,
        core.ledger.committed,
        max(0, core.ledger.free),
        core.ledger.overcommitted,
        core.ledger.stranded,
    )
    return Snapshot(models, waiters, ledger, sum(1 for _ in core.alive()), core.pressure)


def pinned_until(slot: Slot) -> float | None:
    """The end of its pin, None for one without an end and without a pin."""
    endless = slot.spec.pin or slot.pin_until == math.inf
    return None if endless else slot.pin_until


def _model(core: Core, now: float, slot: Slot) -> ModelView:
    ttl_end = core.ttl_end(slot)
    return ModelView(
        name=slot.name,
        state=slot.state,
        reason=slot.reason,
        leases=tuple(slot.leases),
        running=len(slot.leases),
        waiting=core.queue.count(slot.name),
        charge_bytes=core.ledger.charge(slot.name),
        measured_bytes=slot.measured_bytes,
        loads=slot.loads,
        evictions=slot.evictions,
        failures=slot.failures,
        idle_s=now - slot.idle_since if slot.idle else None,
        failed_until=slot.failed_until if slot.state is State.FAILED else None,
        pinned=slot.pinned,
        load_done=slot.load_done,
        load_total=slot.load_total,
        pinned_until=pinned_until(slot),
        ttl_left_s=None if ttl_end is None or ttl_end == math.inf else ttl_end - now,
        removed=slot.removed,
        wished=slot.wish is not None,
    )
