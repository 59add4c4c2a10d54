"""What would become of a request, and why: read-only, for people.

The answer is found by trying: a copy of the scheduler is given the request and played forward, as
if running calls went on for ever, processes ended at once and loads took as long as expected. So
it cannot disagree with what the scheduler would do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.errors import Refusal
from gateway.residency.core import Core
from gateway.residency.effects import CancelLoad, Effect, Reject, SetLimits, Stop, Transition
from gateway.residency.slot import Slot
from gateway.residency.specs import Request, Strategy
from gateway.residency.states import COLD, LEAVING, State
from gateway.residency.text import calls, seconds

MAX_STEPS = 200
"""How far a trial is played; what needs longer cannot be told."""

Ceiling = Literal["budget", "load_concurrency", "max_engines", "pressure", "stranded", "nothing"]


@dataclass(frozen=True, slots=True)
class Occupant:
    """Another model with a process. `why` says in words why it could leave now, or could not.

    `leases` are the ids of the requests that it serves.
    """

    model: str
    state: State
    charge_bytes: int
    leases: tuple[int, ...]
    could_leave: bool
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request for `model` would meet now. Bytes and seconds.

    `fits` says that its reservation is free or held by itself, which does not help when those
    ahead have claimed the room: then `ceiling` is "budget" all the same. `leaves` are those who
    would be told to leave before its load starts, in order, `shrinks` those who would lose their
    prompt caches.
    `ahead` are the requests that would be served before it. `expected_wait_s` is the time until
    its load starts, or until it is served when it is ready; `expected_load_s` what the load then
    takes or still takes. Both are None when nobody can tell. `ceiling` is what is in the way
    first. `refusal` is what the request would be told at once, None when it may at least wait.
    """

    model: str
    state: State
    needs_bytes: int
    fits: bool
    leaves: tuple[str, ...]
    shrinks: tuple[str, ...]
    occupants: tuple[Occupant, ...]
    ahead: tuple[int, ...]
    expected_wait_s: float | None
    expected_load_s: float | None
    strategy: Strategy
    budget_bytes: int
    committed_bytes: int
    stranded_bytes: int
    available_bytes: int
    ceiling: Ceiling
    refusal: Refusal | None


class Events(Protocol):
    """The scheduler's events that a trial needs."""

    def on_request(self, now: float, request: Request) -> list[Effect]: ...

    def on_released(self, now: float, request_id: int) -> list[Effect]: ...

    def on_ready(self, now: float, model: str, measured_bytes: int) -> list[Effect]: ...

    def on_exited(self, now: float, model: str, cause: str | None) -> list[Effect]: ...

    def on_footprint(self, now: float, model: str, measured_bytes: int) -> list[Effect]: ...

    def on_tick(self, now: float) -> list[Effect]: ...


def explain(scheduler: Events, core: Core, now: float, model: str) -> Explanation:
    """`scheduler` is a copy for the trial, `core` is its state; neither is usable afterwards."""
    slot = core.slots[model]
    holds = core.ledger.charge(model)
    room = core.ledger.free + holds
    needs = holds if slot.state in (State.LOADING, State.READY) else core.reservation(slot)
    ceiling = _ceiling(core, slot, needs)
    state, load_left = slot.state, slot.load_left(now) if slot.state is not State.READY else 0.0
    occupants = tuple(_occupant(core, now, other) for other in _others(core, slot))
    ahead = tuple(_ahead(core, now, slot))
    ledger = core.ledger
    accounts = (ledger.budget, ledger.committed, ledger.stranded, max(0, ledger.free))
    trial = _Trial(scheduler, core, now, model)
    trial.play()
    if ceiling == "nothing" and state in (State.UNLOADED, State.FAILED) and not trial.at_once:
        ceiling = "budget"
    return Explanation(
        model,
        state,
        needs,
        state in (State.LOADING, State.READY) or needs <= room,
        tuple(trial.leaves) if trial.wait_s is not None else (),
        tuple(trial.shrinks) if trial.wait_s is not None else (),
        occupants,
        ahead,
        trial.wait_s,
        load_left,
        core.policy.strategy,
        *accounts,
        ceiling,
        trial.refusal,
    )


class _Trial:
    """One request played forward on a copy, until its load starts or nothing more is known."""

    def __init__(self, scheduler: Events, core: Core, now: float, model: str) -> None:
        self.leaves: list[str] = []
        self.shrinks: list[str] = []
        self.wait_s: float | None = None
        self.refusal: Refusal | None = None
        self.at_once = False
        self._scheduler = scheduler
        self._core = core
        self._now = self._begun = now
        self._slot = core.slots[model]
        leased = {number for slot in core.slots.values() for number in slot.leases}
        waiting = {waiter.request_id or 0 for waiter in core.queue}
        self._id = min(leased | waiting | {0}) - 1

    def play(self) -> None:
        request = Request(self._id, self._slot.name)
        self._note(self._scheduler.on_request(self._now, request))
        self.at_once = self._slot.state is State.LOADING
        for _ in range(MAX_STEPS):
            if self._id in self._slot.leases or self._slot.state is State.LOADING:
                self.wait_s = self._now - self._begun
                return
            if self._id not in self._core.queue or not self._step():
                return

    def _note(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Stop(model, "evicted" | "preempted") | CancelLoad(model):
                    self._append(self.leaves, model)
                case Transition(model, _, State.DRAINING, "preempted"):
                    self._append(self.leaves, model)
                case SetLimits(model, 0):
                    self._append(self.shrinks, model)
                case Reject(self._id, refusal) if self._now == self._begun:
                    self.refusal = refusal
                case _:
                    pass

    def _append(self, names: list[str], model: str) -> None:
        if model not in names:
            names.append(model)

    def _step(self) -> bool:
        """Let the next thing happen of which it is known when; False when there is none."""
        for slot in self._core.slots.values():
            effects = self._obey(slot)
            if effects is not None:
                self._note(effects)
                return True
        loads = self._load_ends()
        timer = math.inf if self._core.timer is None else self._core.timer
        first = min(loads, default=math.inf)
        if min(first, timer) == math.inf:
            return False
        if first <= timer:
            self._now = max(self._now, first)
            self._note(self._end_load(loads[first]))
        else:
            self._now = timer
            self._note(self._scheduler.on_tick(timer))
        return True

    def _obey(self, slot: Slot) -> list[Effect] | None:
        """What a doer would answer at once, if it owes this model anything."""
        if slot.state is State.UNLOADING:
            return self._scheduler.on_exited(self._now, slot.name, None)
        if slot.drain is not None and slot.drain.cancelled and slot.leases:
            return self._scheduler.on_released(self._now, next(iter(slot.leases)))
        if slot.shrink_pending:
            return self._scheduler.on_footprint(self._now, slot.name, slot.reserved_bytes)
        return None

    def _load_ends(self) -> dict[float, Slot]:
        ends: dict[float, Slot] = {}
        for slot in self._core.slots.values():
            left = slot.load_left(self._now) if slot.state is State.LOADING else None
            if left is not None:
                ends.setdefault(self._now + left, slot)
        return ends

    def _end_load(self, slot: Slot) -> list[Effect]:
        return self._scheduler.on_ready(self._now, slot.name, slot.life.charge_bytes)


def _ceiling(core: Core, slot: Slot, needs: int) -> Ceiling:
    if slot.state in (State.LOADING, State.READY):
        return "nothing"
    if core.pressure != "normal":
        return "pressure"
    if slot.spec.charge_bytes > core.policy.budget_bytes:
        return "budget"
    missing = needs - core.ledger.free - core.ledger.charge(slot.name)
    if missing > 0:
        return "stranded" if missing <= core.ledger.stranded else "budget"
    others = [other for other in core.alive() if other is not slot]
    if len(others) >= core.policy.max_engines:
        return "max_engines"
    loading = sum(other.state is State.LOADING for other in others)
    return "load_concurrency" if loading >= core.policy.load_concurrency else "nothing"


def _others(core: Core, slot: Slot) -> list[Slot]:
    """Everybody else with a process, in the order in which they would be asked to leave."""
    others = [other for other in core.alive() if other is not slot]
    return sorted(others, key=lambda other: (not other.idle, other.idle_since))


def _ahead(core: Core, now: float, slot: Slot) -> Iterator[int]:
    """Who is served before a new request: in the model, and for the room while it is cold."""
    max_wait_s = core.policy.max_wait_s
    last = (1, slot.spec.priority, math.inf)
    waiters = sorted(core.queue, key=lambda waiter: waiter.rank(now, max_wait_s))
    for waiter in waiters:
        rival = slot.state in COLD and core.slots[waiter.model].state in COLD
        if waiter.request_id is None or waiter.rank(now, max_wait_s) > last:
            continue
        if waiter.model == slot.name or rival:
            yield waiter.request_id


def _occupant(core: Core, now: float, slot: Slot) -> Occupant:
    could_leave, why = _prospect(core, now, slot)
    charge = core.ledger.charge(slot.name)
    return Occupant(slot.name, slot.state, charge, tuple(slot.leases), could_leave, why)


def _prospect(core: Core, now: float, slot: Slot) -> tuple[bool, str]:
    """Whether it could leave now for somebody else, and why."""
    if slot.state in LEAVING:
        after = f" after {calls(len(slot.leases))}" if slot.leases else ""
        return True, f"leaves already{after}"
    if slot.pinned:
        endless = slot.spec.pin or slot.pin_until is None or slot.pin_until == math.inf
        until = "" if endless else f" for {seconds((slot.pin_until or now) - now)} s more"
        return False, f"pinned{until}"
    if slot.state is State.LOADING:
        waiting = core.queue.count(slot.name)
        return not waiting, f"loads, {waiting or 'nobody'} waiting for it"
    preempts = core.policy.strategy == "preempt"
    if slot.leases:
        return preempts, f"in use by {calls(len(slot.leases))}"
    kept = slot.ready_at + core.policy.min_resident_s - now
    if kept > 0:
        return preempts, f"kept for {seconds(kept)} s more because it has just loaded"
    return True, f"idle for {seconds(now - slot.idle_since)} s"
