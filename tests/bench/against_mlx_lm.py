"""Throughput and time to first token beside `mlx_lm.server`: same model, same machine, in turns."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.supervisor.process import engine_environment
from tests.bench.report import Line
from tests.bench.startup import free_port
from tests.fixtures.make_models import random_micro
from tests.harness.daemon import daemon, registry

LEVELS = (1, 4, 8, 16)
ROUNDS = 3
TOKENS = 64
APART_S = 0.005
"""Between two streams: mlx_lm.server's listener takes five connections at a time, resets more."""
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds to the first text (median of the streams), and tokens a second in all."""

    first_text_s: float
    tokens_per_s: float


def lines(folder: Path) -> Iterator[Line]:
    model = random_micro(folder)
    document = registry({"name": "m", "path": str(model), "max_concurrency": 16})
    with daemon(document, folder / "gateway") as ours, _mlx_lm_server(model) as theirs:
        servers = {"gateway": (ours.url, "m"), "mlx_lm.server": (theirs, str(model))}
        for url, name in servers.values():
            asyncio.run(_round(url, name, 1, seed=0))
        for level in LEVELS:
            yield from _level(servers, level)


def _level(servers: dict[str, tuple[str, str]], level: int) -> Iterator[Line]:
    rounds: dict[str, list[Round]] = {name: [] for name in servers}
    for number in range(ROUNDS):
        for name, (url, model) in servers.items():
            rounds[name].append(asyncio.run(_round(url, model, level, seed=level * 100 + number)))
    for name, results in rounds.items():
        first = statistics.median(result.first_text_s for result in results)
        rate = statistics.median(result.tokens_per_s for result in results)
        yield Line(f"{name}, {level} streams: time to first token", 1000 * first, "ms")
        yield Line(f"{name}, {level} streams: throughput", rate, "tokens/s")


async def _round(url: str, model: str, streams: int, seed: int) -> Round:
    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        first = await asyncio.gather(
            *(
                _stream(client, model, f"Stream {seed}.{n}: say something.", n * APART_S)
                for n in range(streams)
            )
        )
    return Round(statistics.median(first), streams * TOKENS / (time.perf_counter() - began))


async def _stream(client: httpx.AsyncClient, model: str, text: str, wait_s: float) -> float:
    """Reads one answer whole; returns the seconds until its first text."""
    await asyncio.sleep(wait_s)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "max_tokens": TOKENS,
        "temperature": 0,
    }
    began, first = time.perf_counter(), None
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if first is None and '"content":' in line and '"content":""' not in line:
                first = time.perf_counter() - began
    if first is None:
        raise RuntimeError("a stream ended without text")
    return first


@contextmanager
def _mlx_lm_server(model: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_lm.server", "--model", str(model), "--port", str(port)],
        env=engine_environment(os.environ, {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _await_health(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)


def _await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
        time.sleep(0.05)
