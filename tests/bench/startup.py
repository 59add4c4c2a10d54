"""How long `serve` takes to its first `/health`, and what it weighs without a model."""

from __future__ import annotations

import http.client
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import yaml

from tests.bench.report import Line, at_most
from tests.harness.daemon import registry, scripted

RUNS = 11
MOST_S = 0.6
MOST_MB = 60
GIVE_UP_S = 30.0


def lines(folder: Path) -> Iterator[Line]:
    path = folder / "registry.yaml"
    path.write_text(yaml.safe_dump(registry(scripted("a"), scripted("b"))))
    runs = [_run(path, folder / f"state-{number}") for number in range(RUNS)]
    seconds = statistics.median(run[0] for run in runs)
    megabytes = statistics.median(run[1] for run in runs)
    yield at_most(f"start to /health 200, median of {RUNS}", seconds, "s", MOST_S)
    yield at_most("gateway memory without a model", megabytes, "MB", MOST_MB)


def _run(config: Path, state: Path) -> tuple[float, float]:
    port = free_port()
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gateway", "serve"),
            *("--config", str(config), "--port", str(port)),
        ],
        env={"MLX_GATEWAY_STATE_DIR": str(state), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not _healthy(port):
            if time.perf_counter() > began + GIVE_UP_S or process.poll() is not None:
                raise RuntimeError("the gateway did not start")
            time.sleep(0.002)
        seconds = time.perf_counter() - began
        return seconds, psutil.Process(process.pid).memory_info().rss / 2**20
    finally:
        process.terminate()
        process.wait(GIVE_UP_S)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
