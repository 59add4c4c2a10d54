"""Counters and histograms, on a registry of their own, and the page of everything."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.errors import Cancelled, ClientGone, ClientTooSlow, RequestTimeout
from gateway.metrics import buckets, gauges, process, vllm
from gateway.metrics.gauges import PREFIX, Gauges

NO_MODEL = ""

CANCELS = {
    Cancelled.code: "asked",
    RequestTimeout.code: "timeout",
    ClientTooSlow.code: "too_slow",
}
"""By the outcome of a request, why its calls were ended before their end."""

MOST_STAGES = 32
"""A stage of a load is named by its engine; what is beyond so many names is one `other`."""

OTHER = "other"


class Metrics:
    """Counters and histograms to write to; gauges are given to `page`."""

    def __init__(self) -> None:
        # A series for each series, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._by_model: list[Counter | Histogram | Gauge] = []
        self._known: set[str] = set()
        self._stages: set[str] = set()
        self._lost: Callable[[], int] = lambda: 0
        self._lost_before = 0
        self._of_requests()
        self._of_models()
        self._of_the_gateway()

    def _of_requests(self) -> None:
        self.requests = self._counter("requests", "requests by outcome", "route", "model", "code")
        self.request_seconds = self._histogram(
            "request_duration_seconds", "whole requests", buckets.REQUEST, "route", "model"
        )
        self.in_flight = self._gauge(
            "requests_in_flight", "requests for models, from their name to their end", "model"
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "from request to first text", buckets.FIRST_TOKEN
        )
        self.inter_token = self._histogram(
            "inter_token_seconds", "mean time between the tokens of each call", buckets.INTER_TOKEN
        )
        self.prefill = self._histogram(
            "prefill_seconds", "an engine's time for the prompt of each call", buckets.WAIT
        )
        self.tokens = self._counter("tokens", "tokens of complete calls", "model", "kind")
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "from the arrival of a request to its lease", buckets.WAIT
        )
        self.prefill_turn_wait = self._histogram(
            "prefill_turn_wait_seconds", "wait of a long prompt for its turn", buckets.WAIT
        )
        self.refusals = self._counter(
            "refusals", "requests refused before service", "model", "code"
        )
        self.calls_ended = self._counter(
            "calls_ended", "running calls ended to free their model", "model", "code"
        )
        self.disconnects = self._counter(
            "client_disconnects", "requests whose client left before the end", "model"
        )
        self.cancels = self._counter(
            "cancels", "requests ended early for another reason", "model", "reason"
        )

    def _of_models(self) -> None:
        self.loads = self._counter("model_loads", "loads started", "model")
        self.load_seconds = self._histogram(
            "model_load_seconds", "from start of the process to ready", buckets.LOAD
        )
        self.stage_seconds = self._counter(
            "model_load_stage_seconds", "time that loads spent in each stage", "model", "stage"
        )
        self.load_failures = self._counter("load_failures", "loads that failed", "model")
        self.loads_given_up = self._counter(
            "loads_given_up", "loads asked for by operators that did not begin", "model"
        )
        self.evictions = self._counter("model_evictions", "models stopped", "model", "reason")
        self.age_at_eviction = self._histogram(
            "model_age_at_eviction_seconds", "from ready to being told to stop", buckets.AGE
        )
        self.thrash = self._counter(
            "model_thrash", "loads of a model soon after it had to leave for others", "model"
        )
        self.preemptions = self._counter(
            "preemptions", "models in use that were told to leave for others", "model"
        )
        self.exits = self._counter("engine_exits", "engine processes ended", "model", "cause")
        self.restarts = self._counter(
            "engine_restarts", "loads after an end that nobody had asked for", "model"
        )
        self.shrinks = self._counter(
            "prompt_cache_shrinks", "prompt caches taken away for room", "model"
        )

    def _of_the_gateway(self) -> None:
        self.reloads = self._counter("reloads", "registry reloads by outcome", "outcome")
        self.reload_good = self._gauge(
            "last_reload_successful", "1 when what is in force is what the registry says"
        )
        self.reload_time = self._gauge(
            "last_reload_success_timestamp_seconds", "when a registry was last read without fault"
        )
        self.failed_writes = self._counter(
            "failed_writes", "state that could not be written", "file"
        )

    # --- writing ------------------------------------------------------------------------------

    def know(self, models: AbstractSet[str]) -> None:
        """These models may have series from now on."""
        self._known |= models

    def forget_others(self, models: AbstractSet[str]) -> None:
        """Drops the series of every known model that is not among these."""
        for name in self._known - models:
            for metric in self._by_model:
                metric.remove_by_labels({"model": name})

    def answered(self, route: str, model: str, outcome: str, seconds: float) -> None:
        """A request is over; `outcome` is the code of its error, else its status."""
        self.requests.labels(route, model, outcome).inc()
        if model:  # a histogram is many series: not one more for each way to be refused
            self.request_seconds.labels(route, model).observe(seconds)
        if outcome == ClientGone.code:
            self.disconnects.labels(model).inc()
        elif outcome in CANCELS:
            self.cancels.labels(model, CANCELS[outcome]).inc()

    def loaded_for(self, model: str, stage: str, seconds: float) -> None:
        """A load has been in a stage for so long."""
        if stage not in self._stages and len(self._stages) >= MOST_STAGES:
            stage = OTHER
        self._stages.add(stage)
        self.stage_seconds.labels(model, stage).inc(max(0.0, seconds))

    def registry_read(self, good: bool) -> None:
        """A registry has been read, and taken over if it is good."""
        self.reload_good.set(good)
        if good:
            self.reload_time.set(time.time())

    def count_lost_lines(self, logger: logging.Logger, lost: Callable[[], int]) -> None:
        """From now on a log line that cannot be written is counted, for it cannot be complained of.

        `lost` says how many lines files have lost so far. Without this, `logging` writes a
        traceback to the same full disk.
        """
        counter = self.failed_writes.labels("log")
        for handler in logger.handlers:
            handler.handleError = lambda record: counter.inc()  # type: ignore[method-assign]
        self._lost = lost

    def count_lost(self) -> None:
        """Takes over what files have lost since the last time."""
        lost = self._lost()
        self.failed_writes.labels("log").inc(max(0, lost - self._lost_before))
        self._lost_before = lost

    # --- reading ------------------------------------------------------------------------------

    def page(self, now: Gauges | None = None, *, aliases: bool = False) -> bytes:
        """The metrics in the Prometheus text format; `now` is what gauges show.

        With `aliases` under vLLM's names too. May run in a thread: the page of many models takes
        tens of milliseconds, and no stream should wait for it.
        """
        families = list(self.registry.collect())
        if now is not None:
            shown = [*gauges.families(now), *process.helper_families(now.helpers)]
            if aliases:
                shown += vllm.families(families, now)
            families += [*shown, *process.own_families()]
        return generate_latest(_Page(families))

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        counter = Counter(PREFIX + name, help_, labels, registry=self.registry)
        if "model" in labels:
            self._by_model.append(counter)
        return counter

    def _gauge(self, name: str, help_: str, *labels: str) -> Gauge:
        gauge = Gauge(PREFIX + name, help_, labels, registry=self.registry)
        if "model" in labels:
            self._by_model.append(gauge)
        return gauge

    def _histogram(
        self, name: str, help_: str, bounds: tuple[float, ...], *labels: str
    ) -> Histogram:
        """Of models alone, unless `labels` says more."""
        histogram = Histogram(
            PREFIX + name, help_, labels or ("model",), registry=self.registry, buckets=bounds
        )
        self._by_model.append(histogram)
        return histogram


class _Page(Collector):
    """Families that have been collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
