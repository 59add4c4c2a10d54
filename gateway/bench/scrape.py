"""A server's Prometheus counters before and after a run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gateway.bench.client import Client, Unreachable

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})? ([-+0-9.eE]+|[+-]?Inf|NaN)\b")
_COUNTERS = ("_total", "_sum", "_count")
_SKIPPED = ("process_", "python_", "mlx_gateway_process_")


@dataclass(frozen=True, slots=True)
class Scrape:
    """Counters by name, summed over their labels; histograms by their `_sum` and `_count`."""

    values: dict[str, float] = field(default_factory=dict)


def read(page: str) -> Scrape:
    values: dict[str, float] = {}
    for line in page.splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        name = found[1]
        if name.endswith(_COUNTERS) and not name.startswith(_SKIPPED):
            values[name] = values.get(name, 0.0) + float(found[2])
    return Scrape(values)


async def scrape(client: Client) -> Scrape:
    """What `/metrics` says now; nothing where there is no such page, or not for us."""
    try:
        status, body = await client.get("/metrics")
    except Unreachable:
        return Scrape()
    return read(body.decode(errors="replace")) if status == 200 else Scrape()


def difference(before: Scrape, after: Scrape) -> dict[str, float]:
    """What has grown, and by how much."""
    grown = {name: value - before.values.get(name, 0.0) for name, value in after.values.items()}
    return {name: value for name, value in sorted(grown.items()) if value > 0}
