"""No engine outlives its gateway, however that ended."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness.daemon import daemon, living, registry, scripted

pytestmark = pytest.mark.anyio

GONE_WITHIN_S = 2.0

MODELS = registry(
    scripted("idle", deltas=1),
    scripted("streaming", tokens_per_s=20, deltas=10_000),
    scripted("stuck", hang_after=1),
)


@pytest.mark.parametrize("model", ["idle", "streaming", "stuck"])
async def test_after_kill_9_of_the_gateway_no_engine_is_left(tmp_path: Path, model: str) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        async with gateway.stream(model) as stream:
            await stream.until_text()
            if model == "idle":
                await stream.rest()
            engines = gateway.engines()
            assert len(engines) == 1
            gateway.signal(signal.SIGKILL)
            killed = time.monotonic()
            assert gateway.wait() == -signal.SIGKILL
            while living(engines):
                assert time.monotonic() < killed + GONE_WITHIN_S, "an engine is still alive"
                await asyncio.sleep(0.02)
    with daemon(MODELS, tmp_path) as gateway:  # the place is free for the next one
        assert (await gateway.chat("idle")).status_code == 200


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def test_a_new_gateway_ends_the_engines_of_an_earlier_life(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    created = psutil.Process(sleeper.pid).create_time()
    with daemon(after_life_with(tmp_path, sleeper.pid, created), tmp_path) as gateway:
        assert sleeper.wait(10) == -signal.SIGKILL
        assert f"ended engines of an earlier life: pids [{sleeper.pid}]" in gateway.log


async def test_a_process_that_only_has_the_pid_of_an_engine_is_spared(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    created = psutil.Process(sleeper.pid).create_time()
    with daemon(after_life_with(tmp_path, sleeper.pid, created - 60), tmp_path) as gateway:
        assert (await gateway.chat("idle")).status_code == 200
        assert sleeper.poll() is None
        assert "earlier life" not in gateway.log


def after_life_with(folder: Path, pid: int, created: float) -> dict[str, object]:
    """Leaves behind what a killed gateway with this engine would."""
    run = folder / "state" / "run"
    run.mkdir(parents=True)
    (run / "engines.json").write_text(json.dumps([[pid, created]]))
    return MODELS
