"""Watching a running daemon from outside: the ledger over time, every transition, its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.daemon import Daemon, Status

GIB = 2**30
SAMPLE_S = 0.05


class Observer:
    """Samples the status all the time, and follows `/admin/events` from its entry on."""

    def __init__(self, gateway: Daemon) -> None:
        self.peak_bytes = 0
        self.peak_claims = 0
        self.transitions: list[str] = []
        self._gateway = gateway
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        following = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._sample()),
            asyncio.create_task(self._follow(following)),
        ]
        await asyncio.wait_for(following.wait(), 10)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            if kind is None and task.done():
                task.result()  # it stopped early: why is what matters
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _sample(self) -> None:
        async with self._gateway.client() as client:
            while True:
                self._note((await client.get("/v1/status")).json())
                await asyncio.sleep(SAMPLE_S)

    def _note(self, status: Status) -> None:
        self.peak_bytes = max(self.peak_bytes, status["memory"]["committed_bytes"])
        alive = [model for model in status["models"] if model["pid"] is not None]
        claims = [(model["entry"]["scripted"] or {}).get("size_gb", 0) for model in alive]
        self.peak_claims = max(self.peak_claims, round(sum(claims) * GIB))

    async def _follow(self, following: asyncio.Event) -> None:
        async with (
            self._gateway.client() as client,
            client.stream("GET", "/admin/events", timeout=None) as response,
        ):
            assert response.status_code == 200
            following.set()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    if "to" in event:
                        self.transitions.append(f"{event['model']} {event['to']}")


def metric(page: str, name: str, *, label: str = "model", **labels: str) -> dict[str, float]:
    """Values of one metric by `label`, summed over the others, of series with these `labels`."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name != f"mlx_gateway_{name}":
                continue
            if all(sample.labels[key] == value for key, value in labels.items()):
                key = sample.labels[label]
                found[key] = found.get(key, 0) + sample.value
    return found


def loads_in(log: str) -> dict[str, int]:
    """How often each model began to load, those that are gone from status and metrics too."""
    return Counter(re.findall(r"model (\S+): \S+ -> loading", log))
