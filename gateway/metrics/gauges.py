"""What is read of the gateway at a scrape, and the families that show it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway import __version__

PREFIX = "mlx_gateway_"


@dataclass(frozen=True, slots=True)
class ModelGauges:
    """One model's state at a scrape; bytes by class, counters since load by what they count.

    `heartbeat_age_s` is None without an engine; `running` and `queued` are calls inside it.
    """

    model: str
    leases: int
    waiting: int
    state: str
    loaded: bool
    pinned: bool
    charge_bytes: int
    memory: Mapping[str, int]
    kv_limit_bytes: int = 0
    running: int = 0
    queued: int = 0
    heartbeat_age_s: float | None = None
    prompt_cache: Mapping[str, int] = field(default_factory=dict)
    prompts_kept: int = 0
    prompts_on_disk_bytes: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    features_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Gauges:
    """The whole gateway at a scrape. Sizes in bytes; `states`, `pressures` are all there are.

    `helpers` are the pids of processes without a model, by what they are for.
    """

    budget_bytes: int
    committed_bytes: int
    stranded_bytes: int
    available_bytes: int
    overcommitted: bool
    pressure: str
    engines: int
    states: tuple[str, ...]
    pressures: tuple[str, ...]
    models: list[ModelGauges] = field(default_factory=list)
    helpers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    draining: bool = False


def families(now: Gauges) -> Iterable[Metric]:
    build = _family("build_info", "always 1; which version runs", "version", "python")
    build.add_metric([__version__, platform.python_version()], 1)
    yield build
    for name, text, value in (
        ("budget_bytes", "what models may use", now.budget_bytes),
        ("committed_bytes", "reserved", now.committed_bytes),
        ("stranded_bytes", "not given back by ended processes", now.stranded_bytes),
        ("available_bytes", "free for the next load", now.available_bytes),
        ("overcommitted", "1 when more is used than the budget", int(now.overcommitted)),
        ("engines", "engine processes", now.engines),
        ("draining", "1 while it stops and takes no more work", int(now.draining)),
    ):
        yield GaugeMetricFamily(PREFIX + name, text, value)
    pressure = _family("pressure", "1 for what the system reports", "level")
    for level in now.pressures:
        pressure.add_metric([level], float(level == now.pressure))
    yield pressure
    yield from (_model_gauge(now, *each) for each in _MODEL_GAUGES)
    yield from (_states(now), _heartbeats(now))
    yield from (_by_kind(now, *each) for each in _BY_CLASS)
    yield from (_counts(now, *each) for each in _COUNTS)


_MODEL_GAUGES: tuple[tuple[str, str, Callable[[ModelGauges], float]], ...] = (
    ("leases", "requests being served", lambda model: model.leases),
    ("waiting", "requests waiting for room, a load or their turn", lambda model: model.waiting),
    ("model_loaded", "1 when the model can serve", lambda model: model.loaded),
    ("model_pinned", "1 when nothing evicts it", lambda model: model.pinned),
    ("model_charge_bytes", "reserved for it", lambda model: model.charge_bytes),
    ("model_kv_limit_bytes", "room for running calls", lambda model: model.kv_limit_bytes),
    ("engine_running", "calls that its engine works on", lambda model: model.running),
    ("engine_waiting", "calls that wait inside its engine", lambda model: model.queued),
    ("prompt_cache_entries", "prompts kept in memory", lambda model: model.prompts_kept),
    ("prompt_cache_disk_bytes", "prompts kept on disk", lambda model: model.prompts_on_disk_bytes),
    ("feature_cache_bytes", "what is kept of images", lambda model: model.features_bytes),
)

_BY_CLASS: tuple[tuple[str, str, str, Callable[[ModelGauges], Mapping[str, int]]], ...] = (
    ("model_memory_bytes", "measured memory", "class", lambda model: model.memory),
)

_COUNTS: tuple[tuple[str, str, str, Callable[[ModelGauges], Mapping[str, int]]], ...] = (
    (
        "prompt_cache",
        "what became of prompts in the cache, since load",
        "event",
        lambda model: model.prompt_cache,
    ),
    (
        "feature_cache",
        "what became of images in the cache, since load",
        "event",
        lambda model: model.features,
    ),
)


def _model_gauge(
    now: Gauges, name: str, text: str, value: Callable[[ModelGauges], float]
) -> Metric:
    family = _family(name, text, "model")
    for model in now.models:
        family.add_metric([model.model], float(value(model)))
    return family


def _by_kind(
    now: Gauges,
    name: str,
    text: str,
    label: str,
    values: Callable[[ModelGauges], Mapping[str, int]],
) -> Metric:
    family = _family(name, text, "model", label)
    for model in now.models:
        for kind, value in values(model).items():
            family.add_metric([model.model, kind], value)
    return family


def _counts(
    now: Gauges,
    name: str,
    text: str,
    label: str,
    values: Callable[[ModelGauges], Mapping[str, int]],
) -> Metric:
    """Counters that begin again with each load of a model."""
    family = CounterMetricFamily(PREFIX + name, text, labels=("model", label))
    for model in now.models:
        for kind, value in values(model).items():
            family.add_metric([model.model, kind], value)
    return family


def _states(now: Gauges) -> Metric:
    family = _family("model_state", "1 for the state it is in", "model", "state")
    for model in now.models:
        for each in now.states:
            family.add_metric([model.model, each], float(each == model.state))
    return family


def _heartbeats(now: Gauges) -> Metric:
    family = _family("engine_heartbeat_age_seconds", "since its engine last gave a sign", "model")
    for model in now.models:
        if model.heartbeat_age_s is not None:
            family.add_metric([model.model], model.heartbeat_age_s)
    return family


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)
