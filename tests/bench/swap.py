"""What a swap costs beyond the load it cannot do without.

Two models share a budget that holds one of them and a spare process. A swap lasts from the request
for the model that is not there to its grant: the other model's process is told to go and reaped,
its memory is counted as back, and the spare takes the new model. The bare load is `Load` to
`Ready` in a spare of the bench's own, between the swaps.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from engines import wire
from gateway.registry.find import Model
from gateway.registry.limits import limits
from gateway.supervisor.call import Granted
from gateway.supervisor.process import Started, engine_environment, finish, start
from gateway.supervisor.slot import engine_spec
from tests.bench.report import Line, at_most
from tests.fixtures.make_models import random_micro
from tests.harness.in_process import TIMEOUT_S, InProcess, in_process, scripted_model, text_model

SWAPS = 20
MOST_MS = 150.0
MIB = 2**20
GIB = 2**30


def lines(folder: Path) -> Iterator[Line]:
    path = random_micro(folder)
    scripted = (scripted_model("one"), scripted_model("two"))
    text = tuple(
        text_model(name, path, kv_memory_gb=0.1, prompt_cache_gb=0) for name in ("one", "two")
    )
    for name, models, budget in (
        ("scripted", scripted, 3 * GIB // 2),
        ("random-micro", text, 450 * MIB),
    ):
        yield from asyncio.run(_all(_measure(name, models, budget)))


async def _all(lines_: AsyncIterator[Line]) -> list[Line]:
    return [line async for line in lines_]


async def _measure(name: str, models: tuple[Model, ...], budget: int) -> AsyncIterator[Line]:
    async with in_process(models, budget) as rig:
        cold = [await _swap(rig, number) for number in range(SWAPS // 4)]
    swaps, loads = [], []
    async with in_process(models, budget, standby=1) as rig:
        for number in range(SWAPS + 1):
            await rig.spare()
            if number % 2:
                loads.append(await _bare_load(models[1], budget))
            swaps.append(await _swap(rig, number))
    swap, load = statistics.median(swaps[1:]), statistics.median(loads)
    yield Line(f"swap without a spare, median of {len(cold) - 1}, {name}", _ms(cold[1:]), "ms")
    yield Line(f"bare load in a spare, median of {SWAPS // 2}, {name}", 1000 * load, "ms")
    yield at_most(f"swap less the bare load, {name}", 1000 * (swap - load), "ms", MOST_MS)


def _ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)


async def _swap(rig: InProcess, number: int) -> float:
    """Seconds from the request for the absent model to its grant; the call is over at the end."""
    began = time.perf_counter()
    call = rig.call(("one", "two")[number % 2], max_tokens=1)
    await rig.until_item(call, Granted)
    seconds = time.perf_counter() - began
    await rig.until_item(call, wire.Finished)
    return seconds


class _Spare:
    """Receives what a spare of the bench's own says."""

    def __init__(self) -> None:
        self.imported = asyncio.Event()
        self.ready = asyncio.Event()
        self.ready_at = 0.0

    def on_message(self, message: wire.FromEngine) -> None:
        if isinstance(message, wire.Loading):
            self.imported.set()
        elif isinstance(message, wire.Ready):
            self.ready_at = time.perf_counter()
            self.ready.set()

    def on_link_lost(self, reason: str) -> None:
        return


async def _bare_load(model: Model, budget: int) -> float:
    """Seconds from `Load` to `Ready` in a process with its imports done."""
    spec = engine_spec(model, 0)
    receiver = _Spare()
    environment = engine_environment(os.environ, {wire.IMPORT_VARIABLE: spec.engine})
    started: Started = await start(receiver, environment)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await receiver.imported.wait()
            began = time.perf_counter()
            started.link.send(wire.Load(spec, limits(model, budget)))
            await receiver.ready.wait()
        return receiver.ready_at - began
    finally:
        await finish(started)
