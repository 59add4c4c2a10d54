"""A random world around the scheduler: clients, operator, system, and a doer that obeys.

Everything comes from one seeded generator, so a seed is a whole history. The doer answers every
effect as the contract says, with random delays, faults and footprints; `Auditor` checks each step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import get_args

from gateway.residency import (
    CancelLeases,
    CancelLoad,
    Effect,
    Forgotten,
    Grant,
    ModelSpec,
    Policy,
    Pressure,
    Priority,
    RegistryDiff,
    Reject,
    Request,
    Scheduler,
    SetLimits,
    SetTimer,
    StartLoad,
    State,
    Stop,
    Strategy,
    Transition,
    Waiting,
)
from tests.unit.residency.auditor import Auditor

Event = tuple[str, tuple[object, ...]]

LAST_CLIENT_EVENT_S = 45.0
LIMIT_S = 5000.0


def random_policy(rng: Random) -> Policy:
    return Policy(
        budget_bytes=rng.choice([100, 100, 140, 200]),
        strategy=rng.choice(get_args(Strategy)),
        wait_timeout_s=rng.choice([5.0, 20.0, 40.0]),
        preempt_after_s=rng.choice([0.0, 3.0, 10.0]),
        max_wait_s=rng.choice([-1.0, 0.0, 4.0]),
        min_resident_s=rng.choice([-1.0, 0.0, 6.0]),
        load_concurrency=rng.choice([1, 1, 2]),
        max_engines=rng.choice([2, 3, 8]),
        preempt_grace_s=rng.choice([0.0, 1.0, 2.0]),
        drain_max_s=5.0,
    )


def random_model(rng: Random, name: str) -> ModelSpec:
    charge = rng.randint(10, 90)
    return ModelSpec(
        name,
        charge,
        prompt_cache_bytes=rng.choice([0, charge // 4]),
        max_concurrency=rng.randint(1, 3),
        max_queue=rng.choice([0, 2, 8]),
        priority=rng.choice(list(Priority)),
        pin=rng.random() < 0.1,
        ttl_s=rng.choice([None, None, 3.0]),
        expected_load_s=rng.choice([None, 4.0]),
    )


def random_models(rng: Random) -> list[ModelSpec]:
    models = [random_model(rng, name) for name in "ABCD"]
    if rng.random() < 0.1:
        models.append(ModelSpec("huge", 1000))
        models.append(ModelSpec("absent", 10, unavailable="its folder is missing"))
    return models


def random_registry(
    rng: Random, policy: Policy, models: list[ModelSpec]
) -> tuple[RegistryDiff, list[ModelSpec]]:
    """A new registry with a few changes, among them none at all, and its models."""
    if rng.random() < 0.3:
        policy = replace(
            random_policy(rng), budget_bytes=rng.choice([60, policy.budget_bytes, 140])
        )
    listed: list[ModelSpec] = []
    restarted: set[str] = set()
    for spec in models:
        fate = rng.random()
        if fate < 0.15:
            continue
        if rng.random() < 0.3:
            restarted.add(spec.name)
        if fate < 0.35:
            listed.append(random_model(rng, spec.name))
        elif fate < 0.45:
            why = None if spec.unavailable else "its folder is missing"
            listed.append(replace(spec, unavailable=why))
        else:
            listed.append(spec)
    names = {spec.name for spec in listed}
    listed += [random_model(rng, name) for name in "ABCDE" if name not in names][:1]
    rng.shuffle(listed)
    return RegistryDiff(policy, tuple(listed), frozenset(restarted)), listed


class Simulation:
    """One history. `run` plays it to its end; `events` and `effects` are its record."""

    def __init__(self, seed: int, client_events: int) -> None:
        self.rng = Random(seed)
        self.policy = random_policy(self.rng)
        self.models = random_models(self.rng)
        self.first_policy, self.first_models = self.policy, self.models
        self.scheduler = Scheduler(self.policy, self.models)
        self.auditor = Auditor(self.policy, self.models)
        self.events: list[tuple[float, Event]] = []
        self.effects: list[list[Effect]] = []
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._timer = 0
        self._lives: dict[str, int] = {}
        for number in range(client_events):
            self._at(self.rng.uniform(0, LAST_CLIENT_EVENT_S), partial(self._outside, number))

    def run(self) -> None:
        self._drain()
        self._feed("on_pressure", "normal")
        self._drain()
        self.auditor.check_quiet(self.scheduler.snapshot(self.now))
        for model in self.models:
            self._feed("on_unload_requested", model.name)
        self._drain()
        self.auditor.check_empty(self.scheduler.snapshot(self.now))

    # --- time ------------------------------------------------------------------------------------

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, action))

    def _after(self, low: float, high: float, action: Callable[[], None]) -> None:
        self._at(self.now + self.rng.uniform(low, high), action)

    def _drain(self) -> None:
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            assert self.now < LIMIT_S, "the world does not come to rest"
            action()

    def _feed(self, method: str, *args: object) -> None:
        event: Event = (method, args)
        self.events.append((self.now, event))
        self.auditor.before(self.now, method, args)
        effects: list[Effect] = getattr(self.scheduler, method)(self.now, *args)
        self.effects.append(effects)
        for effect in effects:
            self.auditor.saw(self.now, effect)
            self._obey(effect)
        self.auditor.after(self.now, self.scheduler.snapshot(self.now))

    # --- clients, operator, system ---------------------------------------------------------------

    def _outside(self, number: int) -> None:
        rng = self.rng
        spec = rng.choice(self.models)
        kind = rng.random()
        if kind < 0.66:
            self._request(number, spec.name)
        elif kind < 0.74:
            measured = int(spec.charge_bytes * rng.uniform(0.3, 1.6))
            self._feed("on_footprint", spec.name, measured)
        elif kind < 0.79:
            self._feed("on_pressure", rng.choice(get_args(Pressure)))
            self._after(0, 10, lambda: self._feed("on_pressure", "normal"))
        elif kind < 0.88:
            self._operate(spec.name)
        elif kind < 0.96:
            diff, self.models = random_registry(rng, self.policy, self.models)
            self.policy = diff.policy
            self._feed("on_registry", diff)
        elif kind < 0.98:
            self._feed("on_released", 10_000 + number)
        else:
            self._feed("on_tick")

    def _request(self, number: int, model: str) -> None:
        rng = self.rng
        if rng.random() < 0.02:
            model = "A"  # which may have been removed
        request = Request(
            number,
            model,
            rng.choice([None, *Priority]),
            keep_alive_s=rng.choice([None, None, None, 0.0, 4.0, -1.0]),
            may_evict=rng.random() < 0.85,
        )
        if request.priority is None and request.may_evict and rng.random() < 0.05:
            self._compare(request)
        else:
            self._feed("on_request", request)
        if rng.random() < 0.2:
            self._after(0, 20, lambda: self._feed("on_cancelled", number))

    def _compare(self, request: Request) -> None:
        """What `explain` says is what a request then meets, and asking changes nothing."""
        if all(spec.name != request.model for spec in self.models):
            return
        before = self.scheduler.snapshot(self.now)
        told = self.scheduler.explain(self.now, request.model)
        assert self.scheduler.snapshot(self.now) == before
        self._feed("on_request", request)
        effects = self.effects[-1]
        refused = [effect.refusal for effect in effects if isinstance(effect, Reject)]
        assert (told.refusal in refused) if told.refusal else request.id in self.auditor.known
        if told.expected_wait_s is not None:
            # Others may be told to leave before, too, once those before them have left.
            stopped = {effect.model for effect in effects if isinstance(effect, Stop | CancelLoad)}
            assert stopped <= set(told.leaves)
        if told.fits and told.ceiling == "nothing" and told.state is State.UNLOADED:
            assert told.leaves == ()

    def _operate(self, model: str) -> None:
        rng = self.rng
        verb = rng.random()
        if verb < 0.4:
            self._feed("on_load_requested", model, rng.random() < 0.5)
        elif verb < 0.7:
            self._feed("on_unload_requested", model)
        elif verb < 0.9:
            self._feed("on_pin", model, rng.choice([None, self.now + rng.uniform(-1, 30)]))
        else:
            self._feed("on_unpin", model)

    # --- the doer --------------------------------------------------------------------------------

    def _obey(self, effect: Effect) -> None:
        match effect:
            case StartLoad(model, charge):
                self._lives[model] = self._lives.get(model, 0) + 1
                self._load(model, charge, self._lives[model])
            case CancelLoad(model) | Stop(model):
                self._end(model, crossed=isinstance(effect, CancelLoad))
            case CancelLeases(_, request_ids):
                self._end_calls(request_ids)
            case Grant(request_id):
                self._after(0, 25, lambda: self._feed("on_released", request_id))
            case SetTimer(at):
                self._set_timer(at)
            case SetLimits(model):
                life = self._lives[model]
                measured = self.auditor.shrunk_footprint(model)
                self._after(0, 1, lambda: self._if_alive(model, life, "on_footprint", measured))
            case Reject() | Waiting() | Transition() | Forgotten():
                pass

    def _load(self, model: str, charge: int, life: int) -> None:
        rng = self.rng
        self._after(0, 1, lambda: self._if_alive(model, life, "on_load_progress", 1, 2))
        fate = rng.random()
        if fate < 0.80:
            measured = int(charge * rng.uniform(0.3, 1.3))
            self._after(1, 15, lambda: self._if_alive(model, life, "on_ready", measured))
        elif fate < 0.9:
            self._after(0, 15, lambda: self._if_alive(model, life, "on_load_failed", "no file"))
        else:
            self._after(0, 15, lambda: self._if_alive(model, life, "on_exited", "SIGKILL"))
        if rng.random() < 0.15:
            self._after(15, 40, lambda: self._if_alive(model, life, "on_exited", "SIGABRT"))

    def _reaped(self, method: str, model: str, cause: str | None) -> None:
        """The end of a process; some of its memory may come back later, or never."""
        stranded = self.rng.choice([0, 0, 0, 5, 30])
        self._feed(method, model, cause, stranded)
        if stranded and self.rng.random() < 0.5:
            self._after(0, 70, lambda: self._feed("on_reclaimed", model, stranded))

    def _end(self, model: str, crossed: bool) -> None:
        self._lives[model] += 1
        self._after(0, 3, lambda: self._reaped("on_exited", model, None))
        if crossed and self.rng.random() < 0.2:
            self._at(self.now, lambda: self._feed("on_ready", model, 1))

    def _end_calls(self, request_ids: tuple[int, ...]) -> None:
        for number in request_ids:
            self._after(0, 1, partial(self._feed, "on_released", number))

    def _set_timer(self, at: float | None) -> None:
        self._timer += 1
        if at is not None:
            self._at(at, partial(self._tick, self._timer))

    def _if_alive(self, model: str, life: int, method: str, *args: object) -> None:
        if self._lives[model] != life:
            return
        if method in ("on_load_failed", "on_exited"):
            self._lives[model] += 1
            (cause,) = args
            self._reaped(method, model, str(cause))
        else:
            self._feed(method, model, *args)

    def _tick(self, timer: int) -> None:
        if timer == self._timer:
            self._feed("on_tick")
