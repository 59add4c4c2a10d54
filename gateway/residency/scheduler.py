"""The pure scheduler: one event in, a list of effects out.

It owns all residency state. It has no clock (`now` is monotonic seconds and never goes back),
awaits nothing and does no I/O, so the same events always give the same effects. The supervisor
feeds events one at a time and executes the effects in order.

Invariants: every request ends in exactly one of `Grant`, `Reject` or `on_cancelled`; a load
starts only when its whole reservation fits; a reservation is returned exactly once, when the
process is reaped; a model with leases is stopped only by preemption, critical pressure, an
operator's unload or a new registry, after its calls were ended.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

from gateway.errors import Refusal
from gateway.residency import refusals, reload
from gateway.residency.core import Core
from gateway.residency.dispatch import dispatch
from gateway.residency.effects import Effect, Reject
from gateway.residency.explain import Explanation, explain
from gateway.residency.slot import Drain, Slot
from gateway.residency.snapshot import Snapshot, take_snapshot
from gateway.residency.specs import ModelSpec, Policy, Pressure, RegistryDiff, Request
from gateway.residency.states import IllegalTransition, State
from gateway.residency.waiters import Waiter


class Scheduler:
    def __init__(self, policy: Policy, models: Iterable[ModelSpec]) -> None:
        """Raises `ValueError` when two models share a name."""
        self._core = Core(policy, tuple(models))

    # --- requests --------------------------------------------------------------------------------

    def on_request(self, now: float, request: Request) -> list[Effect]:
        """Raises `ValueError` when the id belongs to a request that has not ended."""
        core = self._core
        if request.id in core.queue or self._lease_of(request.id) is not None:
            raise ValueError(f"request {request.id} has not ended yet")
        refusal = self.refusal_for(now, request.model)
        if refusal is not None:
            return [Reject(request.id, refusal)]
        slot = core.slots[request.model]
        priority = slot.spec.priority if request.priority is None else request.priority
        waiter = Waiter(
            request.id,
            slot.name,
            priority,
            core.next_seq(),
            arrived=now,
            deadline=now + core.policy.wait_timeout_s,
            keep_alive_s=request.keep_alive_s,
            may_evict=request.may_evict,
        )
        core.queue.add(waiter)
        return self._dispatch(now)

    def on_cancelled(self, now: float, request_id: int) -> list[Effect]:
        """A waiter left before its grant; no effect for anybody else."""
        if self._core.queue.remove(request_id) is None:
            return []
        return self._dispatch(now)

    def on_released(self, now: float, request_id: int) -> list[Effect]:
        """A lease is over; no effect when it was over before, as after a crash."""
        slot = self._lease_of(request_id)
        if slot is None:
            return []
        slot.served(slot.leases.pop(request_id), now)
        return self._dispatch(now)

    # --- loads -----------------------------------------------------------------------------------

    def on_load_requested(self, now: float, model: str, evict: bool = True) -> list[Effect]:
        """Load without a lease, as an operator or `preload` asks; ends a back-off.

        It waits for room like a request, but preempts nobody. Without `evict`, as for a preload,
        nothing leaves for it: it waits only for its turn to load, in the order of the calls and
        behind all requests, and is given up as soon as it does not fit. When it is given up, or
        cannot be at all (see `refusal_for`), the snapshot's `reason` says why. Raises `KeyError`
        for an unknown model.
        """
        core, slot = self._core, self._registered(model)
        if slot.state is State.FAILED:
            slot.forgive(now)
        if slot.state in (State.LOADING, State.READY):
            slot.asked_for = True
        elif evict or slot.wish is None:
            # What only waits for its turn is not given up because loads take long.
            deadline = now + core.policy.wait_timeout_s if evict else math.inf
            wish = Waiter(
                None,
                model,
                slot.spec.priority,
                core.next_seq(),
                arrived=now,
                deadline=deadline,
                may_evict=evict,
            )
            refusal = self.refusal_for(now, model)
            if refusal is None:
                slot.wish = wish
            else:
                core.reject(wish, refusal)
        return self._dispatch(now)

    def on_unload_requested(self, now: float, model: str) -> list[Effect]:
        """Unload, pinned or not. Running calls get `drain_max_s`, waiters of a load are refused.

        Raises `KeyError` for an unknown model.
        """
        core, slot = self._core, self._registered(model)
        slot.wish = None
        if slot.state is State.LOADING:
            for waiter in core.queue.of(model):
                core.reject(waiter, refusals.unloaded(slot))
            core.cancel_load(slot, "requested")
        elif slot.idle:
            core.stop(slot, "requested")
        elif slot.busy:
            at = now + core.policy.drain_max_s
            core.begin_drain(slot, Drain(at, "requested", refusals.unloaded(slot)))
        elif slot.drain is not None:
            slot.drain.beneficiary = None  # it may no longer stay
        return self._dispatch(now)

    def on_pin(self, now: float, model: str, until: float | None) -> list[Effect]:
        """Keep the model, once loaded, until that moment (None: for ever), besides its `pin`.

        Neither contention nor its TTL ends it then. It is not loaded for it. Replaces the pin
        before. Raises `KeyError` for an unknown model.
        """
        self._registered(model).pin_until = math.inf if until is None else until
        return self._dispatch(now)

    def on_unpin(self, now: float, model: str) -> list[Effect]:
        """End what `on_pin` began; a `pin` in the registry stays. Raises `KeyError` likewise."""
        self._registered(model).pin_until = None
        return self._dispatch(now)

    def on_load_progress(self, now: float, model: str, done: int, total: int) -> list[Effect]:
        """Bytes read so far and in all; for status only."""
        slot = self._core.slots[model]
        slot.load_done, slot.load_total = done, total
        return []

    def on_ready(self, now: float, model: str, measured_bytes: int) -> list[Effect]:
        """The engine answers. Ignored when it crosses a `CancelLoad`."""
        slot = self._core.slots[model]
        if slot.state is State.UNLOADING:
            return []
        self._core.ready(now, slot, measured_bytes)
        return self._dispatch(now)

    def on_load_failed(
        self, now: float, model: str, cause: str, stranded_bytes: int = 0
    ) -> list[Effect]:
        """The load failed and its process is reaped: every waiter is told, once.

        For `stranded_bytes` see `on_exited`.
        """
        slot = self._core.slots[model]
        if slot.state is State.LOADING:
            self._load_failed(now, slot, cause, stranded_bytes)
        elif slot.state is State.UNLOADING:
            self._unloaded(now, slot, stranded_bytes)
        else:
            raise IllegalTransition(f"model {model!r} is {slot.state}, no load of it can fail")
        return self._dispatch(now)

    def on_exited(
        self, now: float, model: str, cause: str | None, stranded_bytes: int = 0
    ) -> list[Effect]:
        """The process is reaped; `cause` is None when it was asked to end.

        `stranded_bytes` of its memory have not come back: they count against the budget until
        `on_reclaimed`, but for no longer than `STRANDED_S` and never more than was charged.
        """
        slot = self._core.slots[model]
        cause = cause or "its process ended without being asked to"
        if slot.state is State.UNLOADING:
            self._unloaded(now, slot, stranded_bytes)
        elif slot.state is State.LOADING:
            self._load_failed(now, slot, cause, stranded_bytes)
        elif slot.outdated:
            # A fault of what was leaving for good is none of what comes after it.
            self._core.emit(slot.advance(State.UNLOADING, cause))
            self._unloaded(now, slot, stranded_bytes)
        elif slot.state in (State.READY, State.DRAINING):
            # Its waiters stay: they cause a load as soon as the back-off allows one.
            self._core.gone(now, slot, stranded_bytes)
            self._core.emit(slot.fail(now, cause))
            self._core.follow_availability(slot)
        else:
            raise IllegalTransition(f"model {model!r} is {slot.state} and has no process")
        return self._dispatch(now)

    # --- the registry ----------------------------------------------------------------------------

    def on_registry(self, now: float, diff: RegistryDiff) -> list[Effect]:
        """Take over a new registry, in one step.

        Gone: waiters are refused, a load is cancelled, running calls get `drain_max_s`; the model
        stays in the books until its process is reaped, then it is `Forgotten`. Restarted: the
        same, but waiters wait for the new process, which starts when somebody waits for it, or if
        the old one was pinned or loaded on request. Kept: what has changed holds from now on. A
        budget below what is committed is answered like an overrun.
        """
        reload.apply(self._core, now, diff)
        return self._dispatch(now)

    # --- memory and time -------------------------------------------------------------------------

    def on_footprint(self, now: float, model: str, measured_bytes: int) -> list[Effect]:
        """What the process holds. Ignored for a model that has been told to stop."""
        slot = self._core.slots[model]
        if slot.state not in (State.LOADING, State.READY, State.DRAINING):
            return []
        self._core.measure(slot, measured_bytes)
        return self._dispatch(now)

    def on_reclaimed(self, now: float, model: str, bytes_back: int) -> list[Effect]:
        """So many of this model's stranded bytes have come back after all."""
        self._core.ledger.reclaim(model, bytes_back)
        return self._dispatch(now)

    def on_pressure(self, now: float, level: Pressure) -> list[Effect]:
        """What the system says about memory as a whole; repeating a level changes nothing."""
        if level != self._core.pressure:
            self._core.pressure = level
            self._core.pressure_step_at = None
        return self._dispatch(now)

    def on_tick(self, now: float) -> list[Effect]:
        """The moment of the last `SetTimer`, or any other."""
        return self._dispatch(now)

    # --- read-only -------------------------------------------------------------------------------

    def refusal_for(self, now: float, model: str) -> Refusal | None:
        """Why a request made now would be refused without waiting; None when it would not."""
        slot = self._core.slots.get(model)
        if slot is None or slot.removed:
            return refusals.not_found(model)
        return refusals.at_once(self._core, now, slot)

    def explain(self, now: float, model: str) -> Explanation:
        """What a request for this model would meet now. Raises `KeyError` for an unknown one."""
        self._registered(model)
        trial = copy.deepcopy(self)
        trial.on_tick(now)
        return explain(trial, trial._core, now, model)

    def snapshot(self, now: float) -> Snapshot:
        """Everything an operator may see. Advisory: never decide from it."""
        return take_snapshot(self._core, now)

    # --- shared steps ----------------------------------------------------------------------------

    def _registered(self, model: str) -> Slot:
        slot = self._core.slots[model]
        if slot.removed:
            raise KeyError(model)
        return slot

    def _lease_of(self, request_id: int) -> Slot | None:
        slots = self._core.slots.values()
        return next((slot for slot in slots if request_id in slot.leases), None)

    def _load_failed(self, now: float, slot: Slot, cause: str, stranded_bytes: int) -> None:
        core = self._core
        core.gone(now, slot, stranded_bytes)
        core.emit(slot.fail(now, cause))
        refusal = refusals.load_failed(now, slot)
        for waiter in core.queue.of(slot.name):
            core.reject(waiter, refusal)
        core.follow_availability(slot)

    def _unloaded(self, now: float, slot: Slot, stranded_bytes: int) -> None:
        self._core.gone(now, slot, stranded_bytes)
        self._core.unloaded(slot)

    def _dispatch(self, now: float) -> list[Effect]:
        dispatch(self._core, now)
        return self._core.take_effects()
