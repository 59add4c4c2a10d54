"""Our figures under the names that vLLM gives them, so that dashboards made for it work.

Names and the label `model_name` are vLLM's; each is computed from a family of ours at a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from gateway.metrics.gauges import PREFIX, Gauges, ModelGauges

VLLM = "vllm:"
LABEL = "model_name"


@dataclass(frozen=True, slots=True)
class _Alias:
    """`name` shows the samples of our `source` that have the labels in `where`."""

    name: str
    source: str
    where: Mapping[str, str]


_SUMS = (
    _Alias("time_to_first_token_seconds", "time_to_first_token_seconds", {}),
    _Alias("inter_token_latency_seconds", "inter_token_seconds", {}),
    _Alias("time_per_output_token_seconds", "inter_token_seconds", {}),
    _Alias("e2e_request_latency_seconds", "request_duration_seconds", {}),
    _Alias("request_queue_time_seconds", "queue_wait_seconds", {}),
    _Alias("request_prefill_time_seconds", "prefill_seconds", {}),
    _Alias("prompt_tokens", "tokens", {"kind": "prompt"}),
    _Alias("generation_tokens", "tokens", {"kind": "completion"}),
    _Alias("num_preemptions", "calls_ended", {"code": "preempted"}),
)


_GAUGES: tuple[tuple[str, str, Callable[[ModelGauges], float]], ...] = (
    ("num_requests_running", "requests being served", lambda model: model.leases),
    ("num_requests_waiting", "requests that wait", lambda model: model.waiting),
    (
        "kv_cache_usage_perc",
        "from 0 to 1: the part of the room for running calls that is in use",
        lambda model: _part(model.memory.get("kv", 0), model.kv_limit_bytes),
    ),
)


def families(ours: Iterable[Metric], now: Gauges) -> Iterable[Metric]:
    """`ours` are the families of counters and histograms."""
    by_name = {family.name: family for family in ours}
    for alias in _SUMS:
        yield _renamed(by_name[PREFIX + alias.source], alias)
    for name, text, value in _GAUGES:
        family = GaugeMetricFamily(VLLM + name, text, labels=(LABEL,))
        for model in now.models:
            family.add_metric([model.model], float(value(model)))
        yield family


def _renamed(source: Metric, alias: _Alias) -> Metric:
    """Summed over every label but the model, and the bound of a bucket."""
    sums: dict[tuple[str, str, str | None], float] = {}
    for sample in source.samples:
        labels = sample.labels
        if all(labels[key] == value for key, value in alias.where.items()):
            suffix = sample.name.removeprefix(source.name)
            key = (labels["model"], suffix, labels.get("le"))
            sums[key] = sums.get(key, 0.0) + sample.value
    name = VLLM + alias.name
    family = Metric(name, source.documentation, source.type)
    family.samples = [
        Sample(name + suffix, {LABEL: model} | ({} if le is None else {"le": le}), value)
        for (model, suffix, le), value in sums.items()
    ]
    return family


def _part(used: int, limit: int) -> float:
    return min(1.0, used / limit) if limit else 0.0
