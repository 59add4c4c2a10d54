"""Reading a page of metrics as Prometheus does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families


@dataclass(slots=True)
class Family:
    """What a page says of one metric; `name` is as in queries, without a histogram's suffixes."""

    name: str
    kind: str
    labels: set[str] = field(default_factory=set)
    series: dict[str, float] = field(default_factory=dict)
    """By `name{label=value,...}`, labels in the order of their names."""


def families(page: str) -> dict[str, Family]:
    """By name. Raises `ValueError` for a page that Prometheus would not read."""
    found: dict[str, Family] = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        own = found[name] = Family(name, family.type)
        for sample in family.samples:
            labels = ",".join(f"{key}={sample.labels[key]}" for key in sorted(sample.labels))
            own.series[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
            own.labels |= sample.labels.keys() - {"le"}
    return found


def samples(page: str, prefix: str = "mlx_gateway_") -> dict[str, float]:
    """Every sample of a page, by name without `prefix` and labels."""
    return {
        key.removeprefix(prefix): value
        for family in families(page).values()
        for key, value in family.series.items()
    }


def names(page: str) -> dict[str, set[str]]:
    """The labels of every name that a query can use: a histogram has three of them."""
    found: dict[str, set[str]] = defaultdict(set)
    for family in families(page).values():
        if family.kind == "histogram":
            found[f"{family.name}_bucket"] |= family.labels | {"le"}
            found[f"{family.name}_sum"] |= family.labels
            found[f"{family.name}_count"] |= family.labels
        else:
            found[family.name] |= family.labels
    return dict(found)
