"""A notation for scheduler scenarios: one event a line, with the effects that must follow.

    <seconds> <event> <arguments>  ->  <effect>, <effect>, ...

A request may name a priority, `keep=<seconds>` and `free-room` (it may evict nobody); so may a
load. `reload` lists the whole new registry: `A` as it is, `A=6/2` with a charge and a prompt
cache, `A!` restarted, `A?` unavailable, and `budget=<bytes>` or another setting of the policy.
`SetTimer` and `Transition` are left out; tests that care about them look at `Play.effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gateway.residency import (
    CancelLeases,
    CancelLoad,
    Effect,
    Forgotten,
    Grant,
    ModelSpec,
    Policy,
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
    Transition,
    Waiting,
)
from gateway.residency.snapshot import ModelView


def show(effect: Effect) -> str | None:
    """One effect in the notation; None for those it leaves out."""
    text: str | None
    match effect:
        case Grant(request_id, model):
            text = f"grant {request_id} {model}"
        case Reject(request_id, refusal):
            text = f"reject {request_id} {refusal.kind.code}"
        case Waiting(request_id, phase):
            text = f"wait {request_id} {phase}"
        case SetTimer() | Transition():
            text = None
        case _:
            text = _show_order(effect)
    return text


def _show_order(
    effect: StartLoad | CancelLoad | Stop | SetLimits | CancelLeases | Forgotten,
) -> str:
    match effect:
        case StartLoad(model, _):
            return f"load {model}"
        case CancelLoad(model):
            return f"cancel-load {model}"
        case Stop(model, reason):
            return f"stop {model} {reason}"
        case SetLimits(model, prompt_cache_bytes):
            return f"limits {model} {prompt_cache_bytes}"
        case CancelLeases(model, request_ids, refusal):
            return f"end {model} {' '.join(map(str, request_ids))} {refusal.kind.code}"
        case Forgotten(model):
            return f"forget {model}"


def request(number: str, model: str, *options: str) -> Request:
    wish = Request(int(number), model)
    for option in options:
        if option.startswith("keep="):
            wish = replace(wish, keep_alive_s=float(option.removeprefix("keep=")))
        elif option == "free-room":
            wish = replace(wish, may_evict=False)
        else:
            wish = replace(wish, priority=Priority[option.upper()])
    return wish


def changed(spec: ModelSpec, entry: str) -> ModelSpec:
    """The spec after an entry of the `reload` notation."""
    charge, _, cache = entry.strip("!?").partition("=")[2].partition("/")
    if charge:
        spec = replace(spec, charge_bytes=int(charge), prompt_cache_bytes=int(cache or 0))
    return replace(spec, unavailable="its folder is missing" if "?" in entry else None)


EVENTS: dict[str, Callable[..., list[Effect]]] = {
    "request": lambda to, now, *args: to.on_request(now, request(*args)),
    "leave": lambda to, now, number: to.on_cancelled(now, int(number)),
    "release": lambda to, now, number: to.on_released(now, int(number)),
    "ready": lambda to, now, model, measured: to.on_ready(now, model, int(measured)),
    "fail": lambda to, now, model, why, left="0": to.on_load_failed(now, model, why, int(left)),
    "exit": lambda to, now, model, left="0": to.on_exited(now, model, None, int(left)),
    "crash": lambda to, now, model, why, left="0": to.on_exited(now, model, why, int(left)),
    "footprint": lambda to, now, model, measured: to.on_footprint(now, model, int(measured)),
    "pressure": lambda to, now, level: to.on_pressure(now, level),
    "tick": lambda to, now: to.on_tick(now),
    "load": lambda to, now, model, how="": to.on_load_requested(now, model, how != "free-room"),
    "unload": lambda to, now, model: to.on_unload_requested(now, model),
    "pin": lambda to, now, model, end=None: to.on_pin(now, model, end and float(end)),
    "unpin": lambda to, now, model: to.on_unpin(now, model),
    "reclaim": lambda to, now, model, back: to.on_reclaimed(now, model, int(back)),
}


class Play:
    """A scheduler and everything it has said; `effects` are those of the last event."""

    def __init__(self, policy: Policy, models: Iterable[ModelSpec]) -> None:
        self.policy = policy
        listed = tuple(models)
        self.specs = {spec.name: spec for spec in listed}
        self.scheduler = Scheduler(policy, listed)
        self.effects: list[Effect] = []
        self.timer: float | None = None

    def event(self, now: float, verb: str, *args: str) -> list[str]:
        """Feed one event; what it caused, in the notation."""
        if verb == "reload":
            self.effects = self.scheduler.on_registry(now, self.diff(args))
        else:
            self.effects = EVENTS[verb](self.scheduler, now, *args)
        for effect in self.effects:
            if isinstance(effect, SetTimer):
                self.timer = effect.at
        return [text for text in map(show, self.effects) if text is not None]

    def diff(self, entries: Sequence[str]) -> RegistryDiff:
        """The registry that the `reload` notation describes; a name that returns is as it was."""
        models: list[ModelSpec] = []
        for entry in entries:
            name, _, value = entry.partition("=")
            if hasattr(self.policy, name):
                kind = type(getattr(self.policy, name))
                self.policy = replace(self.policy, **{name: kind(value)})
            elif name == "budget":
                self.policy = replace(self.policy, budget_bytes=int(value))
            else:
                name = name.strip("!?")
                models.append(changed(self.specs.get(name, ModelSpec(name, 1)), entry))
        self.specs |= {spec.name: spec for spec in models}
        restarted = {entry.partition("=")[0].strip("!?") for entry in entries if "!" in entry}
        return RegistryDiff(self.policy, tuple(models), frozenset(restarted))

    def run(self, script: str) -> Play:
        """Every line of the script, compared; blank lines and those that begin with # are notes."""
        for line in script.splitlines():
            if not line.strip() or line.strip().startswith("#"):
                continue
            event, _, expected = line.partition("->")
            now, verb, *args = event.split()
            want = [text.strip() for text in expected.split(",") if text.strip()]
            got = self.event(float(now), verb, *args)
            assert got == want, f"{line.strip()}  (got {', '.join(got)})"
        return self

    def view(self, model: str, now: float = 0.0) -> ModelView:
        models = self.scheduler.snapshot(now).models
        return next(view for view in models if view.name == model)

    def state(self, model: str) -> State:
        return self.view(model).state

    def refusal(self) -> str:
        """The message of the one request that the last event refused."""
        (message,) = [e.refusal.message for e in self.effects if isinstance(e, Reject)]
        return message

    def retry_after(self) -> float | None:
        (seconds,) = [e.refusal.retry_after_s for e in self.effects if isinstance(e, Reject)]
        return seconds


def play(strategy: str = "wait", *models: ModelSpec, **changes: float) -> Play:
    """With a budget of 10 and short times; without models there are A 8, B 8 and the pinned P 1."""
    values = {"wait_timeout_s": 30.0, "max_wait_s": 20.0, "min_resident_s": 5.0, **changes}
    specs = models or (ModelSpec("A", 8), ModelSpec("B", 8), ModelSpec("P", 1, pin=True))
    return Play(Policy(10, strategy, **values), specs)  # type: ignore[arg-type]
