"""A model that is resident hardly notices that another one loads."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

import httpx
import pytest

from tests.harness.daemon import CHAT, chat_body, daemon, registry, scripted

pytestmark = pytest.mark.anyio

ROUNDS = 6
ALONE_S = 1.2
PROMISED = 1.2


async def _latency(client: httpx.AsyncClient) -> float:
    began = time.perf_counter()
    answer = await client.post(CHAT, json=chat_body("resident"))
    assert answer.status_code == 200
    return time.perf_counter() - began


async def test_latency_while_another_model_loads(tmp_path: Path) -> None:
    """Medians of hundreds of requests, alone and during loads in turns, within the promise."""
    resident = scripted("resident", deltas=20, pin=True)
    document = registry(resident, scripted("loader", load_s=ALONE_S))
    alone: list[float] = []
    beside: list[float] = []
    with daemon(document, tmp_path) as gateway:
        async with gateway.client() as client:
            for _ in range(20):
                await _latency(client)
            for _ in range(ROUNDS):
                end = time.perf_counter() + ALONE_S
                while time.perf_counter() < end:
                    alone.append(await _latency(client))
                load = asyncio.create_task(client.post("/v1/models/loader/load?wait=true"))
                await gateway.until_model("loader", state="loading")
                during: list[float] = []
                while not load.done():
                    during.append(await _latency(client))
                beside += during[:-1]  # the last one may have begun after the load
                assert (await load).status_code == 200
                (await client.post("/v1/models/loader/unload")).raise_for_status()
                await gateway.until_model("loader", pid=None)
        assert (await gateway.model("resident"))["loads"] == 1
    ratio = median(beside) / median(alone)
    figures = (
        f"median {median(alone) * 1e3:.2f} ms alone ({len(alone)} requests), "
        f"{median(beside) * 1e3:.2f} ms during loads ({len(beside)}): {ratio:.2f}"
    )
    print(f"\n{figures}")  # noqa: T201
    assert min(len(alone), len(beside)) >= 200, figures
    assert ratio <= PROMISED, figures
