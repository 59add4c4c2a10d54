"""Every metric there is, on a registry of its own. Labels come from configuration, never from
client input, so the number of series is bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

PREFIX = "mlx_gateway_"
NO_MODEL = ""
SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
)


@dataclass(frozen=True, slots=True)
class ModelGauges:
    """One model's state at a scrape; bytes by class."""

    model: str
    leases: int
    waiting: int
    state: str
    loaded: bool
    pinned: bool
    charge_bytes: int
    memory: dict[str, int]


@dataclass(frozen=True, slots=True)
class Gauges:
    """The whole gateway at a scrape. Sizes in bytes; `states`, `pressures` are all there are."""

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


class Metrics:
    """Counters and histograms to write to; gauges are read from `gauges` when scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._by_model: list[Counter | Histogram] = []
        self._known: set[str] = set()
        self.requests = self._counter("requests", "requests by outcome", "route", "model", "code")
        self.request_seconds = self._histogram(
            "request_duration_seconds", "whole requests", "route", "model"
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "from request to first text", "model"
        )
        self.inter_token = self._histogram(
            "inter_token_seconds", "mean time between the tokens of each call", "model"
        )
        self.tokens = self._counter("tokens", "tokens of complete calls", "model", "kind")
        self.loads = self._counter("model_loads", "loads started", "model")
        self.load_seconds = self._histogram(
            "model_load_seconds", "from start of the process to ready", "model"
        )
        self.evictions = self._counter("model_evictions", "models stopped", "model", "reason")
        self.exits = self._counter("engine_exits", "engine processes ended", "model", "cause")
        self.reloads = self._counter("reloads", "registry reloads by outcome", "outcome")
        self.failed_writes = self._counter(
            "failed_writes", "state that could not be written", "file"
        )
        self.refusals = self._counter(
            "refusals", "requests refused before service", "model", "code"
        )
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "from the arrival of a request to its lease", "model"
        )
        self.age_at_eviction = self._histogram(
            "model_age_at_eviction_seconds", "from ready to being told to stop", "model"
        )
        self.preemptions = self._counter(
            "preemptions", "models in use that were told to leave for others", "model"
        )
        self.calls_ended = self._counter(
            "calls_ended", "running calls ended to free their model", "model", "code"
        )
        self.load_failures = self._counter("load_failures", "loads that failed", "model")
        self.loads_given_up = self._counter(
            "loads_given_up", "loads asked for by operators that did not begin", "model"
        )
        self.shrinks = self._counter(
            "prompt_cache_shrinks", "prompt caches taken away for room", "model"
        )

    def know(self, models: AbstractSet[str]) -> None:
        """These models may have series from now on."""
        self._known |= models

    def forget_others(self, models: AbstractSet[str]) -> None:
        """Drops the series of every known model that is not among these."""
        for name in self._known - models:
            for metric in self._by_model:
                metric.remove_by_labels({"model": name})

    def count_lost_lines(self, logger: logging.Logger) -> None:
        """From now on a log line that cannot be written is counted, for it cannot be complained of.

        Without this, `logging` writes a traceback to the same full disk.
        """
        lost = self.failed_writes.labels("log")
        for handler in logger.handlers:
            handler.handleError = lambda record: lost.inc()  # type: ignore[method-assign]

    def show(self, gauges: Callable[[], Gauges]) -> None:
        """From now on a scrape also shows what `gauges` returns."""
        self.registry.register(_Live(gauges))

    def page(self) -> bytes:
        """The metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(PREFIX + name, text, labels, registry=self.registry)
        if "model" in labels:
            self._by_model.append(counter)
        return counter

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        histogram = Histogram(PREFIX + name, text, labels, registry=self.registry, buckets=SECONDS)
        if "model" in labels:
            self._by_model.append(histogram)
        return histogram


class _Live(Collector):
    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self._gauges()
        for name, text, value in (
            ("budget_bytes", "what models may use", now.budget_bytes),
            ("committed_bytes", "reserved", now.committed_bytes),
            ("stranded_bytes", "not given back by ended processes", now.stranded_bytes),
            ("available_bytes", "free for the next load", now.available_bytes),
            ("overcommitted", "1 when more is used than the budget", int(now.overcommitted)),
            ("engines", "engine processes", now.engines),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value)
        yield _one_of("pressure", "1 for what the system reports", now.pressures, now.pressure)
        yield from _model_families(now)


def _model_families(now: Gauges) -> Iterable[GaugeMetricFamily]:
    leases = _family("leases", "requests being served", "model")
    waiting = _family("waiting", "requests waiting for room, a load or their turn", "model")
    loaded = _family("model_loaded", "1 when the model can serve", "model")
    pinned = _family("model_pinned", "1 when nothing evicts it", "model")
    charge = _family("model_charge_bytes", "reserved for it", "model")
    state = _family("model_state", "1 for the state it is in", "model", "state")
    memory = _family("model_memory_bytes", "measured memory", "model", "class")
    for model in now.models:
        name = [model.model]
        leases.add_metric(name, model.leases)
        waiting.add_metric(name, model.waiting)
        loaded.add_metric(name, float(model.loaded))
        pinned.add_metric(name, float(model.pinned))
        charge.add_metric(name, model.charge_bytes)
        for each in now.states:
            state.add_metric([*name, each], float(each == model.state))
        for kind, value in model.memory.items():
            memory.add_metric([*name, kind], value)
    return (leases, waiting, loaded, pinned, charge, state, memory)


def _one_of(name: str, text: str, values: Iterable[str], now: str) -> GaugeMetricFamily:
    family = _family(name, text, "level")
    for value in values:
        family.add_metric([value], float(value == now))
    return family


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)
