"""Engines that do not stop, hang or talk without end: how they are ended, and who notices.

The processes are real; the bounds are smaller than the product's.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from engines import wire
from gateway import errors
from gateway.residency import State
from gateway.supervisor import engine
from gateway.supervisor.call import CallFailed
from gateway.supervisor.process import STDERR_BYTES, STDERR_LINES, Process, interpreter
from gateway.supervisor.watch import Patience
from tests.harness.in_process import InProcess, in_process, scripted_model, until

pytestmark = pytest.mark.anyio

GIB = 2**30


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STOP_GRACE_S", 0.2)
    monkeypatch.setattr(engine, "STOP_SLACK_S", 0.1)
    monkeypatch.setattr(engine, "KILL_AFTER_S", 0.6)


async def failure(rig: InProcess, model: str) -> errors.GatewayError:
    call = rig.call(model)
    deadline = asyncio.get_running_loop().time() + 60
    while items := await call.batch(deadline):
        if isinstance(items[-1], CallFailed):
            return items[-1].error
        assert not isinstance(items[-1], wire.Finished), "the call did not fail"
    raise AssertionError("the call never ended")


@pytest.mark.usefixtures("impatient")
async def test_an_engine_that_ignores_every_request_to_stop_is_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models = (scripted_model("deaf", ignore_term=True), scripted_model("other"))
    async with in_process(models, 2 * GIB) as rig:
        deaf, other = await rig.serve("deaf"), await rig.serve("other")
        rig.supervisor.unload("deaf")
        await rig.until_state("deaf", State.UNLOADING)
        assert await rig.serve("other") == other
        await rig.until_state("deaf", State.UNLOADED)
        assert f"engine deaf: does not stop; sending SIGTERM to {deaf}" in caplog.text
        assert f"last on the stderr of pid {deaf}" in caplog.text
        assert [exit_.how for _, exit_ in rig.pids.exits] == ["asked"]
        assert await rig.serve("other") == other
        assert await rig.serve("deaf") != deaf


async def test_the_stacks_of_a_hung_engine_are_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    patience = Patience(hang_timeout_s=1.0, first_step_timeout_s=1.0)
    async with in_process((scripted_model("stuck", hang_after=1),), GIB, 0, patience) as rig:
        error = await failure(rig, "stuck")
        assert isinstance(error, errors.EngineHung)
    assert "engine stuck: last on the stderr of pid" in caplog.text
    assert "(most recent call first)" in caplog.text
    assert "in hang" in caplog.text  # the work thread's
    assert "in run" in caplog.text  # and the I/O thread's


async def test_a_load_that_stalls_is_ended_with_its_stacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    patience = Patience(load_timeout_s=1.0)
    async with in_process((scripted_model("slow", load_stall_at=0),), GIB, 0, patience) as rig:
        error = await failure(rig, "slow")
        assert isinstance(error, errors.LoadFailed)
    assert "the load made no progress for 1 s" in caplog.text
    assert "in hang" in caplog.text


async def test_a_frozen_engine_that_can_say_nothing_is_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.supervisor.watch.HEARTBEAT_TIMEOUT_S", 2.5)
    ice = scripted_model("ice", freeze_after=1, deltas=1000, tokens_per_s=50)
    async with in_process((ice,), GIB) as rig:
        error = await failure(rig, "ice")
        assert "sent no heartbeat for 2.5 s" in error.message


async def test_a_model_that_floods_stderr_loads_and_serves() -> None:
    async with in_process((scripted_model("loud", stderr_flood=200_000),), GIB) as rig:
        await rig.serve("loud")


async def test_an_endless_flood_is_kept_within_bounds() -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "while True: os.write(2, (b'noise ' * 20 + b'\\n') * 500)\n"
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    process = Process(started)
    await until(lambda: len(process.last_lines) == STDERR_LINES)
    assert process.stderr_bytes <= STDERR_BYTES
    async with asyncio.timeout(60):
        await process.dump_stacks()  # has an end, although there is never a silence
        process.kill()
        await process.exited
    assert process.stderr_bytes <= STDERR_BYTES
    assert len(process.last_lines) == STDERR_LINES
    assert set(process.last_lines[1:-1]) == {"noise " * 20}


async def test_engines_come_from_the_gateway_not_from_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "__init__.py").write_text("raise SystemExit('the wrong engines')")
    monkeypatch.chdir(tmp_path)
    assert interpreter() == [sys.executable, "-P"]
    async with in_process((scripted_model("one"),), GIB) as rig:
        await rig.serve("one")
    monkeypatch.chdir(Path(wire.__file__).parents[1])
    assert interpreter() == [sys.executable]
