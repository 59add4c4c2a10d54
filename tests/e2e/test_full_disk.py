"""A full disk costs what would have been written, said once and counted, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.daemon import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Daemon,
    command,
    daemon,
    environ,
    registry,
    scripted,
    start,
    write,
)

pytestmark = pytest.mark.anyio

MODELS = registry(scripted("one", deltas=1), scripted("two", deltas=1), budget_gb=1)
LOST = "cannot keep the engines' pids"
DISK_BYTES = 2**20


class Disk:
    """A folder on a small disk of its own where that can be had, else one that can be blocked.

    Either way the file `name` of its run directory cannot be written between `fill` and `free`.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = self._block = folder
        size = f"size={DISK_BYTES}"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
        try:
            self._mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
        except OSError:
            self._mounted = False

    def fill(self, name: str) -> None:
        if not self._mounted:
            self._block = self._folder / "run" / f"{name}.new"
            self._block.mkdir(parents=True)
            return
        with contextlib.suppress(OSError), (self._folder / "filler").open("wb", 0) as filler:
            while True:
                filler.write(bytes(4096))

    def free(self) -> None:
        if self._mounted:
            (self._folder / "filler").unlink()
        else:
            self._block.rmdir()

    def remove(self) -> None:
        if self._mounted:
            subprocess.run(["umount", str(self._folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "state")
    yield made
    made.remove()


async def failed_writes(gateway: Daemon, file: str) -> float:
    page = (await gateway.get("/metrics")).text
    return next(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "mlx_gateway_failed_writes_total" and sample.labels["file"] == file
    )


def kept_pids(folder: Path) -> list[int]:
    kept = folder / "state" / "run" / "engines.json"
    return [pid for pid, _ in json.loads(kept.read_text())]


async def test_with_its_state_on_a_full_disk_it_serves_on(tmp_path: Path, disk: Disk) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        assert (await gateway.chat("one")).status_code == 200
        first = (await gateway.model("one"))["pid"]
        disk.fill("engines.json")
        for model in ("two", "one", "two"):  # each one evicts the other
            assert (await gateway.chat(model)).status_code == 200
        assert kept_pids(tmp_path) == [first]  # whole, though not of today
        assert gateway.log.count(LOST) == 1
        assert await failed_writes(gateway, "engines") >= 3
        disk.free()
        assert (await gateway.chat("one")).status_code == 200
        assert kept_pids(tmp_path) == [(await gateway.model("one"))["pid"]]


async def test_a_start_on_a_full_disk_says_what_to_do(tmp_path: Path, disk: Disk) -> None:
    disk.fill("address")
    write(MODELS, tmp_path)
    with killed_at_the_end(start(tmp_path, {})) as process:
        assert process.wait(START_TIMEOUT_S) == 75
    log = (tmp_path / "log").read_text()
    assert "cannot be written (" in log
    assert "give the state another place with MLX_GATEWAY_STATE_DIR" in log
    assert "Traceback" not in log


@contextlib.contextmanager
def nowhere_to_write() -> Iterator[int]:
    """A descriptor to which every write fails."""
    full = Path("/dev/full")
    if full.exists():
        descriptor = os.open(full, os.O_WRONLY)
    else:
        unread, descriptor = os.pipe()
        os.close(unread)
    yield descriptor
    os.close(descriptor)


async def test_with_its_log_on_a_full_disk_it_starts_serves_and_ends(tmp_path: Path) -> None:
    write(MODELS, tmp_path)
    with nowhere_to_write() as full, killed_at_the_end(start_onto(full, tmp_path)) as process:
        gateway = Daemon(process, await_address(process, tmp_path), tmp_path)
        for model in ("one", "two", "one"):
            assert (await gateway.chat(model)).status_code == 200
        assert await failed_writes(gateway, "log") >= 3
        assert (await gateway.get("/health")).status_code == 200
        gateway.signal(signal.SIGTERM)
        assert process.wait(STOP_TIMEOUT_S) == 0


@contextlib.contextmanager
def killed_at_the_end(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def start_onto(descriptor: int, folder: Path) -> subprocess.Popen[bytes]:
    """A gateway whose output goes to the descriptor."""
    return subprocess.Popen(
        [sys.executable, *command(folder)],
        stdout=descriptor,
        stderr=descriptor,
        env=environ(folder, {}),
    )


def await_address(process: subprocess.Popen[bytes], folder: Path) -> str:
    address = folder / "state" / "run" / "address"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not address.exists():
        assert process.poll() is None, "did not start"
        assert time.monotonic() < deadline, "did not write its address"
        time.sleep(0.02)
    return address.read_text().strip()
