"""Spare processes of a running gateway: used, counted, and never left behind."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.supervisor.standby import default_count
from tests.harness.daemon import WAIT_TIMEOUT_S, Daemon, daemon, living, registry, scripted, write

pytestmark = pytest.mark.anyio

GONE_WITHIN_S = 2.0
READY = "is ready for a model"


def document(standby: int = 1, **manager: Any) -> dict[str, Any]:
    models = (scripted("one", deltas=1), scripted("two", deltas=1))
    return registry(*models, standby=standby, **manager)


async def engines(gateway: Daemon, count: int) -> list[psutil.Process]:
    """The gateway's processes, as soon as there are so many."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while True:
        found = living(gateway.engines())
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, f"processes: {found}"
        await asyncio.sleep(0.02)


async def ready_spares(gateway: Daemon, count: int) -> None:
    """Once so many spares have been reported ready since the start."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while gateway.log.count(READY) < count:
        assert time.monotonic() < deadline, gateway.log
        await asyncio.sleep(0.02)


async def test_a_swap_is_served_by_the_spare(tmp_path: Path) -> None:
    with daemon(document(budget_gb=1.5), tmp_path) as gateway:
        for number, model in enumerate(("one", "two", "one", "two"), start=1):
            await ready_spares(gateway, number)
            (spare,) = [p for p in await engines(gateway, min(number, 2)) if _new(p, gateway)]
            assert (await gateway.chat(model)).status_code == 200
            assert (await gateway.model(model))["pid"] == spare.pid
        status = await gateway.status()
        assert status["memory"]["committed_bytes"] == 2**30  # spares live in what is free


def _new(process: psutil.Process, gateway: Daemon) -> bool:
    """Whether it has never had a model."""
    return f"engine pid {process.pid} " not in gateway.log and process.pid in _spares(gateway)


def _spares(gateway: Daemon) -> list[int]:
    said = [line for line in gateway.log.splitlines() if READY in line]
    return [int(line.split("spare pid ")[1].split()[0]) for line in said][-1:]


async def test_a_model_that_fits_alone_gets_the_room_of_the_spare(tmp_path: Path) -> None:
    models = (scripted("big", size_gb=2, env={"A": "1"}), scripted("other"))
    with daemon(registry(*models, budget_gb=2, standby=2), tmp_path) as gateway:
        spares = await engines(gateway, 2)
        assert (await gateway.chat("big")).status_code == 200
        assert not living(spares)
        assert len(await engines(gateway, 1)) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_broken_spare_costs_nobody_an_answer(
    tmp_path: Path, number: signal.Signals
) -> None:
    with daemon(document(), tmp_path) as gateway:
        await ready_spares(gateway, 1)
        (spare,) = await engines(gateway, 1)
        spare.send_signal(number)
        answers = await asyncio.gather(*(gateway.chat(name) for name in ("one", "two", "one")))
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        pids = {(await gateway.model(name))["pid"] for name in ("one", "two")}
        assert spare.pid not in pids
        assert not living([spare])


async def test_a_reload_says_how_many_there_are(tmp_path: Path) -> None:
    with daemon(document(standby=0), tmp_path) as gateway:
        assert (await gateway.chat("one")).status_code == 200
        (one,) = await engines(gateway, 1)
        for standby in (2, 1, 0):
            write(document(standby=standby), tmp_path)
            gateway.signal(signal.SIGHUP)
            assert one in await engines(gateway, 1 + standby)


@pytest.mark.parametrize("when", ["importing", "ready"])
async def test_after_kill_9_of_the_gateway_no_spare_is_left(tmp_path: Path, when: str) -> None:
    with daemon(document(standby=2), tmp_path) as gateway:
        spares = await engines(gateway, 2)
        if when == "ready":
            await ready_spares(gateway, 2)
        gateway.signal(signal.SIGKILL)
        killed = time.monotonic()
        assert gateway.wait() == -signal.SIGKILL
        while living(spares):
            assert time.monotonic() < killed + GONE_WITHIN_S, "a spare is still alive"
            await asyncio.sleep(0.02)


async def test_the_pids_of_spares_are_kept_for_the_next_life(tmp_path: Path) -> None:
    with daemon(document(standby=2), tmp_path) as gateway:
        await ready_spares(gateway, 2)
        spares = {process.pid for process in await engines(gateway, 2)}
        kept = tmp_path / "state" / "run" / "engines.json"
        assert {pid for pid, _ in json.loads(kept.read_text())} == spares
        assert (await gateway.chat("one")).status_code == 200
        await ready_spares(gateway, 3)
        now = {process.pid for process in await engines(gateway, 3)}
        assert {pid for pid, _ in json.loads(kept.read_text())} == now


async def test_sigterm_ends_spares_that_are_still_starting(tmp_path: Path) -> None:
    with daemon(document(standby=4), tmp_path) as gateway:
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        assert not gateway.engines()


async def test_without_a_word_there_are_as_many_as_the_machine_has_use_for(tmp_path: Path) -> None:
    with daemon(registry(scripted("one", deltas=1)), tmp_path) as gateway:
        assert (await gateway.chat("one")).status_code == 200
        pid = (await gateway.model("one"))["pid"]
        assert pid in [process.pid for process in await engines(gateway, 1 + default_count())]
