"""What a streamed event costs the gateway, and how many it passes on, over a scripted engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.bench.relay import relay_cost
from tests.bench.report import Line, at_least, at_most
from tests.harness.daemon import Daemon, daemon, registry, scripted

SECONDS = 5.0

ALLOWED_US = {1: 40.0, 8: 40.0, 100: 40.0, 1000: 60.0}
"""Streams at a time, each as fast as everything together can go: the event's own cost."""

PACED = {1: 200.0, 8: 100.0, 100: 20.0}
"""Streams at a time and tokens a second of each: what a model of today would ask.

Nearly all of this is the machine's price of waking a process for each event, so it is shown beside
a bare asyncio relay of the same bytes at the same pace, and has no bound of its own.
"""

LEAST_FRAMES_PER_S = 20_000
MOST_RSS_1000_MB = 120.0
WORDS = 1_000_000
MANY = {"max_concurrency": 1024, "context_length": 2 * WORDS}


class Client:
    """The counting client, seen from the bench."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready"

    def frames(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def streams(port: int, model: str, count: int) -> Iterator[Client]:
    arguments = ["-m", "tests.bench.counting_client", str(port), model, str(count)]
    process = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        process.wait()


def lines(folder: Path) -> Iterator[Line]:
    flat_out = scripted("flat-out", deltas=WORDS, **MANY)
    paced = [
        scripted(f"paced-{count}", tokens_per_s=rate, deltas=WORDS, **MANY)
        for count, rate in PACED.items()
    ]
    with daemon(registry(flat_out, *paced, budget_gb=100), folder) as running:
        for count in ALLOWED_US:
            yield from _flat_out(running, count)
            # The leases of clients that have just gone would take places of the next ones.
            asyncio.run(running.until_model("flat-out", leases=0, running=0))
        for count, rate in PACED.items():
            yield _paced(running, count)
            least = relay_cost(count * rate)
            yield Line(f"  of which a bare relay of {count * rate:.0f} a second", least, "us")


def _flat_out(running: Daemon, count: int) -> Iterator[Line]:
    gateway = psutil.Process(running.pid)
    with streams(running.port, "flat-out", count) as client:
        cpu, frames, seconds = _measure(gateway, client)
        rss = gateway.memory_info().rss / 2**20
    what = f"gateway CPU per event, {count} streams"
    yield at_most(what, 1e6 * cpu / frames, "us", ALLOWED_US[count])
    what = f"frames passed on, {count} streams"
    yield at_least(what, frames / seconds, "frames/s", LEAST_FRAMES_PER_S)
    if count == 1000:
        yield at_most("gateway memory with 1,000 open streams", rss, "MB", MOST_RSS_1000_MB)


def _paced(running: Daemon, count: int) -> Line:
    gateway = psutil.Process(running.pid)
    with streams(running.port, f"paced-{count}", count) as client:
        cpu, frames, seconds = _measure(gateway, client)
    what = f"gateway CPU per event, {count} streams, {frames / seconds:.0f} events a second"
    return Line(what, 1e6 * cpu / frames, "us")


def _measure(gateway: psutil.Process, client: Client) -> tuple[float, int, float]:
    """CPU seconds of the gateway, frames at the client, and wall seconds, over the same time."""
    before, frames, began = _cpu(gateway), client.frames(), time.perf_counter()
    time.sleep(SECONDS)
    used, counted = _cpu(gateway) - before, client.frames() - frames
    return used, counted, time.perf_counter() - began


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
