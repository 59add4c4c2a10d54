"""Loading and unloading over and over, and what the gateway's process holds meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.harness.daemon import Daemon, daemon, registry, scripted

MIB = 2**20
RSS_SLACK = 3 * MIB
"""Allocators keep some pages and give some back; a leak of one load's worth grows past this."""

MODELS = ("plain", "other")


@dataclass(frozen=True, slots=True)
class Held:
    """What the gateway's process holds: resident bytes, descriptors, threads, dead children."""

    rss: int
    descriptors: int
    threads: int
    zombies: int

    def __str__(self) -> str:
        return (
            f"{self.rss / MIB:.1f} MiB, {self.descriptors} descriptors, {self.threads} threads, "
            f"{self.zombies} zombies"
        )

    def grown_since(self, before: Held) -> bool:
        return (
            self.rss > before.rss + RSS_SLACK
            or self.descriptors > before.descriptors
            or self.threads > before.threads
            or self.zombies > 0
        )


def document() -> dict[str, Any]:
    """Room for one of two models, so that each load can be an eviction as well."""
    return registry(*(scripted(name, 1, deltas=20) for name in MODELS), budget_gb=1)


def held(pid: int) -> Held:
    process = psutil.Process(pid)
    children = process.children(recursive=True)
    return Held(
        process.memory_info().rss,
        process.num_fds(),
        process.num_threads(),
        sum(child.status() == psutil.STATUS_ZOMBIE for child in children),
    )


async def cycle(gateway: Daemon, number: int) -> None:
    """One model loads, answers and ends: evicted, unloaded or killed in turn."""
    name = MODELS[number % 2]
    async with gateway.stream(name) as stream:
        await stream.rest()
    assert (stream.done, stream.error) == (True, None)
    match number % 3:
        case 0:
            async with gateway.client() as client:
                (await client.post(f"/v1/models/{name}/unload")).raise_for_status()
            await gateway.until_model(name, state="unloaded", pid=None)
        case 1:
            psutil.Process((await gateway.model(name))["pid"]).kill()
            await gateway.until_model(name, state="failed", pid=None)
        case _:
            other = await gateway.chat(MODELS[1 - number % 2], max_tokens=1)
            assert other.status_code == 200
            assert (await gateway.model(name))["state"] == "unloaded"


async def compared(warm: int, total: int, folder: Path) -> str:
    """Fails when more is held after `total` cycles than after `warm`, nothing loaded; else says it.

    A gateway warms up: its first cycles fill caches that stay.
    """
    with daemon(document(), folder) as gateway:
        for number in range(warm):
            await cycle(gateway, number)
        before = await _held_when_empty(gateway)
        for number in range(warm, total):
            await cycle(gateway, number)
        after = await _held_when_empty(gateway)
    figures = f"after {warm} cycles: {before}; after {total}: {after}"
    assert not after.grown_since(before), figures
    return figures


async def _held_when_empty(gateway: Daemon) -> Held:
    async with gateway.client() as client:
        for name in MODELS:
            (await client.post(f"/v1/models/{name}/unload")).raise_for_status()
    await gateway.until(lambda s: all(model["pid"] is None for model in s["models"]))
    assert gateway.engines() == []
    return held(gateway.pid)
