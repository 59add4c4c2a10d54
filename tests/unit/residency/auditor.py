"""An account of the scheduler's promises, kept apart from its own: it sees events and effects.

It knows what a doer knows. `before`, `saw` and `after` are called around every event and raise
`AssertionError` at the first broken promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.errors import ModelNotFound, ModelTooLarge, ModelUnavailable, NoCapacity, Refusal
from gateway.residency import (
    CancelLeases,
    CancelLoad,
    Effect,
    Forgotten,
    Grant,
    ModelSpec,
    Policy,
    Pressure,
    RegistryDiff,
    Reject,
    Request,
    SetLimits,
    SetTimer,
    Snapshot,
    StartLoad,
    State,
    Stop,
    Transition,
    Waiting,
)
from tests.unit.residency.lives import EPSILON_S, Life, Pending, Stranded


class Auditor:
    def __init__(self, policy: Policy, models: Sequence[ModelSpec]) -> None:
        self.policy = policy
        self.specs = {spec.name: spec for spec in models}
        self.lives: dict[str, Life] = {}
        self.pending: dict[int, Pending] = {}
        self.stranded = Stranded()
        self.pins: dict[str, float] = {}
        """When each of them ends."""
        self.wishes: set[str] = set()
        """Models an operator may have asked for, with evictions, and whose load has not begun."""
        self.asked: set[str] = set()
        """The same, and preloads, and what a new registry may load again."""
        self.largest: dict[str, int] = {}
        """What has been measured after a load, which the next one may reserve."""
        self.longest_s = policy.wait_timeout_s
        """How long anybody may have waited; a new registry refuses in its own step."""
        self.pressure: Pressure = "normal"
        self.preemptible: set[str] = set()
        """Models whose calls an operator, a registry or critical pressure may have ended."""
        self.keep_alive: dict[int, float | None] = {}
        """What each lease wishes for after it."""
        self.grants = 0
        self.rejects = 0

    # --- events ----------------------------------------------------------------------------------

    def before(self, now: float, method: str, args: Sequence[object]) -> None:
        self.longest_s = self.policy.wait_timeout_s
        match (method, *args):
            case ("on_request", Request() as request):
                self.pending[request.id] = Pending(
                    request.model, now, request.keep_alive_s, request.may_evict
                )
            case ("on_cancelled", int(number)):
                self.pending.pop(number, None)
            case ("on_released", int(number)):
                self._released(now, number)
            case ("on_pressure", "normal" | "warning" | "critical" as level):
                self.pressure = level
                self._note_critical()
            case ("on_registry", RegistryDiff() as diff):
                self._registry(now, diff)
            case _:
                self._before_doer(now, method, args)

    def _before_doer(self, now: float, method: str, args: Sequence[object]) -> None:
        match (method, *args):
            case ("on_ready", str(model), int(measured)):
                self._ready(now, model, measured)
            case ("on_load_failed" | "on_exited", str(model), _, int(stranded)):
                self._count_loading(now, model)
                self.stranded.add(now, model, min(stranded, self.lives.pop(model).charge))
            case ("on_reclaimed", str(model), int(back)):
                self.stranded.reclaim(now, model, back)
            case ("on_footprint", str(model), int(measured)):
                life = self.lives.get(model)
                if life is not None and not life.stopping:
                    life.footprint(measured)
            case _:
                self._before_operator(method, args)

    def _before_operator(self, method: str, args: Sequence[object]) -> None:
        match (method, *args):
            case ("on_unload_requested", str(model)):
                self.preemptible.add(model)
            case ("on_pin", str(model), None):
                self.pins[model] = math.inf
            case ("on_pin", str(model), float(until)):
                self.pins[model] = until
            case ("on_unpin", str(model)):
                self.pins.pop(model, None)
            case ("on_load_requested", str(model), bool(evict)):
                self.asked.add(model)
                if evict:
                    self.wishes.add(model)
            case _:
                assert method in ("on_load_progress", "on_tick")

    def _note_critical(self) -> None:
        if self.pressure == "critical":
            self.preemptible.update(self.lives)

    def _released(self, now: float, number: int) -> None:
        for life in self.lives.values():
            if number in life.leases:
                life.leases.discard(number)
                life.idle_since = now
                life.keep_alive_s = self.keep_alive.pop(number)

    def _ready(self, now: float, model: str, measured: int) -> None:
        life = self.lives[model]
        if life.stopping:
            return
        self._count_loading(now, model)
        self.largest[model] = max(measured, self.largest.get(model, 0))
        life.ready = True
        life.idle_since = now
        life.measured = measured
        life.charge = max(measured, life.spec.charge_bytes)
        life.take_over(self.specs[model])

    def _registry(self, now: float, diff: RegistryDiff) -> None:
        for waiter in self.pending.values():
            life = self.lives.get(waiter.model)
            if life is not None and life.loading:
                over = self._waited(now, waiter) - diff.policy.wait_timeout_s
                waiter.excused_s = max(waiter.excused_s, over)
        known, self.specs = set(self.specs), {spec.name: spec for spec in diff.models}
        self.longest_s = max(self.policy.wait_timeout_s, diff.policy.wait_timeout_s)
        self.policy = diff.policy
        for name in known - set(self.specs):
            self.pins.pop(name, None)
        self.asked |= diff.restarted
        for name, life in self.lives.items():
            if name not in known or name not in self.specs or name in diff.restarted:
                life.outdated = True
                self.preemptible.add(name)
            elif life.ready and not life.stopping and not life.outdated:
                life.take_over(self.specs[name])

    def _count_loading(self, now: float, model: str) -> None:
        """Time in which the model was loading is not waiting time."""
        life = self.lives[model]
        if not life.loading:
            return
        for waiter in self.pending.values():
            if waiter.model == model:
                waiter.loading_s += now - max(life.started, waiter.arrived)

    def shrunk_footprint(self, model: str) -> int:
        """What an engine reports after its limits have changed."""
        return max(0, self.lives[model].measured - 1)

    def pinned(self, now: float, model: str) -> bool:
        return self.specs[model].pin or now < self.pins.get(model, 0)

    @property
    def known(self) -> set[int]:
        """Requests that wait or are served."""
        return set(self.pending) | set(self.keep_alive)

    def committed(self) -> int:
        return sum(life.charge for life in self.lives.values())

    # --- effects ---------------------------------------------------------------------------------

    def saw(self, now: float, effect: Effect) -> None:
        match effect:
            case Grant(request_id, model):
                self._grant(now, request_id, model)
            case Reject(request_id, refusal):
                self._reject(now, self.pending.pop(request_id), refusal)
            case Waiting(request_id, phase):
                waiter = self.pending[request_id]
                assert phase is not waiter.phase, "a phase that has not changed"
                waiter.phase = phase
            case SetTimer(at):
                assert at is None or now < at < math.inf
            case Forgotten(model):
                assert model not in self.specs, "what is in the registry was forgotten"
                assert model not in self.lives, "a process was forgotten"
            case Transition():
                pass
            case _:
                self._saw_order(now, effect)

    def _saw_order(
        self, now: float, effect: StartLoad | CancelLoad | Stop | SetLimits | CancelLeases
    ) -> None:
        match effect:
            case StartLoad(model, charge):
                self._start(now, model, charge)
            case CancelLoad(model):
                life = self.lives[model]
                assert life.loading
                self._count_loading(now, model)
                life.stopping = True
            case Stop(model, reason):
                self._stop(now, model, reason)
            case SetLimits(model, prompt_cache):
                if self.lives[model].told_limits(prompt_cache):
                    assert self.committed() + self.stranded.total(now) <= self.policy.budget_bytes
            case CancelLeases(model, request_ids, _):
                self._cancel_leases(now, model, request_ids)

    def _start(self, now: float, model: str, charge: int) -> None:
        assert model not in self.lives, f"{model} was loaded twice"
        taken = self.committed() + self.stranded.total(now)
        assert taken + charge <= self.policy.budget_bytes, "a load that does not fit"
        spec = self.specs[model]
        assert charge >= spec.charge_bytes
        assert spec.unavailable is None
        assert self.pressure == "normal", "a load under pressure"
        assert len(self.lives) < self.policy.max_engines
        loading = sum(life.loading for life in self.lives.values())
        assert loading < self.policy.load_concurrency
        self.lives[model] = Life(spec, charge, now)
        self.preemptible.discard(model)
        self.wishes.discard(model)
        self.asked.discard(model)

    def _stop(self, now: float, model: str, reason: str) -> None:
        life = self.lives[model]
        assert life.ready
        assert not life.stopping, f"{model} was stopped twice"
        assert not life.leases, f"{model} was stopped with leases"
        life.stopping = True
        assert (reason == "reload") == life.outdated
        if reason not in ("requested", "reload") and self.pinned(now, model):
            assert reason == "pressure" or life.ended_calls, f"a pinned model was stopped: {reason}"
        if reason == "evicted":
            others = (w for w in self.pending.values() if w.model != model and w.may_evict)
            assert any(others) or self.wishes - {model}, "nobody was there to evict for"
        if reason == "ttl":
            assert life.idle_limit_s is not None
            assert now >= life.idle_since + life.idle_limit_s - EPSILON_S

    def _cancel_leases(self, now: float, model: str, request_ids: tuple[int, ...]) -> None:
        life = self.lives[model]
        assert set(request_ids) == life.leases
        assert not life.ended_calls, "calls were ended twice"
        life.ended_calls = True
        if model not in self.preemptible:
            assert "preempt" in self.policy.strategy, "calls were ended by a policy that does not"
            assert not self.pinned(now, model)

    def _grant(self, now: float, request_id: int, model: str) -> None:
        waiter = self.pending.pop(request_id)
        life = self.lives[model]
        assert waiter.model == model
        assert life.ready
        assert not life.stopping
        assert not life.outdated, "granted a process that a new registry has given up"
        assert not life.ended_calls
        assert len(life.leases) < self.specs[model].max_concurrency
        life.leases.add(request_id)
        self.keep_alive[request_id] = waiter.keep_alive_s
        self._check_wait(now, waiter)
        self.grants += 1

    def _reject(self, now: float, waiter: Pending, refusal: Refusal) -> None:
        self._check_wait(now, waiter)
        self.rejects += 1
        if refusal.kind is ModelNotFound:
            assert waiter.model not in self.specs
        elif refusal.kind is ModelTooLarge:
            assert self.specs[waiter.model].charge_bytes > self.policy.budget_bytes
        elif refusal.kind is ModelUnavailable:
            assert self.specs[waiter.model].unavailable is not None
        else:
            assert refusal.retry_after_s is not None
            assert refusal.retry_after_s >= 1
        if refusal.kind is NoCapacity:
            assert self.policy.strategy in refusal.message

    def _check_wait(self, now: float, waiter: Pending) -> None:
        """Nobody waits longer than `wait_timeout_s` and the time of loads."""
        waited = self._waited(now, waiter)
        assert waited <= self.longest_s + waiter.excused_s + EPSILON_S, f"waited for {waited} s"

    def _waited(self, now: float, waiter: Pending) -> float:
        """Without the time in which its model was loading."""
        waited = now - waiter.arrived - waiter.loading_s
        life = self.lives.get(waiter.model)
        if life is not None and life.loading:
            waited -= now - max(life.started, waiter.arrived)
        return waited

    # --- after every event -----------------------------------------------------------------------

    def after(self, now: float, snapshot: Snapshot) -> None:
        self._note_critical()
        views = {view.name: view for view in snapshot.models}
        assert set(views) == set(self.specs) | set(self.lives), "who is in the books"
        for name, view in views.items():
            life = self.lives.get(name)
            assert view.removed == (name not in self.specs)
            assert view.charge_bytes == (life.charge if life else 0), f"the charge of {name}"
            assert set(view.leases) == (life.leases if life else set())
            assert (life is not None) == (view.state in _WITH_PROCESS)
            assert view.removed or view.pinned == self.pinned(now, name)
        assert not any(life.limits_due for life in self.lives.values()), "limits were not told"
        ledger = snapshot.ledger
        assert ledger.budget == self.policy.budget_bytes
        assert ledger.committed == sum(view.charge_bytes for view in snapshot.models)
        assert ledger.stranded == self.stranded.total(now)
        assert ledger.available == max(0, ledger.budget - ledger.committed - ledger.stranded)
        assert {waiter.request_id for waiter in snapshot.waiters} == set(self.pending)
        for waiter in self.pending.values():
            assert waiter.phase is not None
            assert waiter.model in self.specs
            self._check_wait(now, waiter)
        self._check_overrun(snapshot)
        self._check_served(snapshot)
        self._check_started(now, snapshot)

    def _check_overrun(self, snapshot: Snapshot) -> None:
        """More than the budget: recorded with its cause, and everything idle is on its way out."""
        ledger = snapshot.ledger
        over = ledger.committed + ledger.stranded - ledger.budget
        assert (ledger.overcommitted is not None) == (over > 0)
        leaving = sum(
            view.charge_bytes
            for view in snapshot.models
            if view.state in (State.DRAINING, State.UNLOADING)
        )
        leaving += sum(
            life.spec.prompt_cache_bytes
            for life in self.lives.values()
            if life.shrink_pending and not life.stopping
        )
        if over > leaving:
            for view in snapshot.models:
                idle = view.state is State.READY and not view.leases
                assert view.pinned or not idle, f"{view.name} stays idle while memory is over"

    def _check_started(self, now: float, snapshot: Snapshot) -> None:
        """The only cold model that anybody may want loads if it fits."""
        cold = {w.model for w in self.pending.values()} - {*self.lives}
        loading = sum(life.loading for life in self.lives.values())
        if len(cold) != 1 or self.asked - cold - {*self.lives} or self.pressure != "normal":
            return
        if any(view.state in (State.DRAINING, State.UNLOADING) for view in snapshot.models):
            return  # these may be waited for too
        (name,) = cold
        (view,) = (view for view in snapshot.models if view.name == name)
        if view.failed_until is not None and now < view.failed_until:
            return
        need = max(self.specs[name].charge_bytes, self.largest.get(name, 0))
        fits = need <= snapshot.ledger.available and len(self.lives) < self.policy.max_engines
        assert not fits or loading >= self.policy.load_concurrency, f"{name} could load"

    def _check_served(self, snapshot: Snapshot) -> None:
        """Resident means served, unless somebody has waited for longer than max_wait_s.

        And who is not wanted does not stay longer than its TTL or the last keep-alive.
        """
        starved = any(
            waiter.waited_s >= self.policy.max_wait_s - EPSILON_S for waiter in snapshot.waiters
        )
        for view in snapshot.models:
            if view.state is not State.READY:
                continue
            if view.waiting and view.running < self.specs[view.name].max_concurrency:
                assert starved, f"{view.name} is resident and does not serve"
            limit = self.lives[view.name].idle_limit_s
            if limit is not None and view.idle_s is not None and not view.pinned:
                assert view.waiting or view.idle_s < limit + EPSILON_S, f"{view.name} stays"

    # --- at the end ------------------------------------------------------------------------------

    def check_quiet(self, snapshot: Snapshot) -> None:
        """No client does anything any more: every request has ended."""
        assert not self.pending
        assert not snapshot.waiters
        assert all(not view.leases for view in snapshot.models)

    def check_empty(self, snapshot: Snapshot) -> None:
        """Everything was unloaded: nothing is held."""
        assert not self.lives
        assert snapshot.ledger.committed == 0
        assert snapshot.ledger.available == self.policy.budget_bytes


_WITH_PROCESS = (State.LOADING, State.READY, State.DRAINING, State.UNLOADING)
