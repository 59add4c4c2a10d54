"""Stopping: what runs may end, what comes is refused, and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, living, registry, reply, scripted
from tests.harness.raw import connect

pytestmark = pytest.mark.anyio

SHORT = scripted("model", tokens_per_s=20, deltas=40)
ENDLESS = scripted("model", tokens_per_s=20, deltas=100_000, max_concurrency=1)
HOUR = 3600


async def until_draining(gateway: Daemon) -> None:
    await gateway.until(lambda status: status["draining"])


async def test_a_running_stream_ends_well_and_new_work_is_refused(tmp_path: Path) -> None:
    with daemon(registry(SHORT, server={"drain_s": 60}), tmp_path) as gateway:
        async with gateway.stream("model") as stream:
            await stream.until_text()
            engines = gateway.engines()
            gateway.signal(signal.SIGTERM)
            await until_draining(gateway)
            gateway.signal(signal.SIGTERM)  # changes nothing

            ready = await gateway.get("/readyz")
            assert (ready.status_code, ready.text) == (503, "draining\n")
            assert (await gateway.get("/livez")).status_code == 200
            refused = await gateway.chat("model")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            await stream.rest()
        stream.assert_complete(reply(40))
        assert gateway.wait() == 0
        assert living(engines) == []


async def test_what_outlasts_the_drain_ends_with_an_error(tmp_path: Path) -> None:
    with daemon(registry(ENDLESS, server={"drain_s": 0.5}), tmp_path) as gateway:
        async with gateway.stream("model") as stream:
            await stream.until_text()
            engines = gateway.engines()
            queued = asyncio.create_task(gateway.chat("model"))
            await gateway.until_model("model", waiting=1)
            gateway.signal(signal.SIGTERM)
            await stream.rest()
        stream.assert_failed("draining")
        answer = await queued
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert gateway.wait() == 0
        assert living(engines) == []


async def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    with daemon(registry(ENDLESS, server={"drain_s": HOUR}), tmp_path) as gateway:
        async with gateway.stream("model") as stream:
            await stream.until_text()
            gateway.signal(signal.SIGINT)
            await until_draining(gateway)
            assert await stream.next() is not None
            gateway.signal(signal.SIGINT)
            await stream.rest()
        stream.assert_failed("draining")
        assert gateway.wait() == 0


async def test_an_idle_connection_does_not_keep_it(tmp_path: Path) -> None:
    with daemon(registry(SHORT, server={"drain_s": HOUR}), tmp_path) as gateway:
        async with gateway.client() as client:
            assert (await client.get("/livez")).status_code == 200
            with connect(gateway.port) as silent:
                gateway.signal(signal.SIGTERM)
                assert gateway.wait() == 0
                assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("second", "why"),
    [({}, "waits for its turn"), ({"size_gb": 10}, "waits for room")],
    ids=["turn", "room"],
)
async def test_a_load_is_given_up_and_none_is_begun_in_its_place(
    tmp_path: Path, second: dict[str, Any], why: str
) -> None:
    document = registry(
        scripted("first", load_s=HOUR, preload=True), scripted("second", preload=True, **second)
    )
    with daemon(document, tmp_path) as gateway:
        await gateway.until_model("first", state="loading")
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        assert "model first: unloaded -> loading" in gateway.log
        assert "model second: unloaded -> loading" not in gateway.log, why
        assert "WARNING" not in gateway.log
        assert "ERROR" not in gateway.log


async def test_nothing_of_it_is_left_in_the_run_directory(tmp_path: Path) -> None:
    with daemon(registry(SHORT), tmp_path) as gateway:
        assert (await gateway.chat("model", max_tokens=1)).status_code == 200
        run = tmp_path / "state" / "run"
        kept = {"lock", "address", "engines.json", "media"}
        assert {path.name for path in run.iterdir()} == kept
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        assert {path.name for path in run.iterdir()} == {"lock", "media"}
        assert not list((run / "media").iterdir())
        assert "WARNING" not in gateway.log
