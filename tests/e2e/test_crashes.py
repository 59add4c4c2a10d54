"""An engine that dies takes its own calls with it, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.harness.daemon import daemon, registry, reply, script, scripted

pytestmark = pytest.mark.anyio

ENDLESS = 100_000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
async def test_only_the_calls_of_the_dead_engine_fail(
    tmp_path: Path, number: signal.Signals
) -> None:
    victim = scripted("victim", tokens_per_s=20, deltas=ENDLESS)
    steady = scripted("steady", tokens_per_s=40, deltas=80)
    with daemon(registry(victim, steady), tmp_path) as gateway:
        async with gateway.stream("victim") as hit, gateway.stream("steady") as spared:
            await hit.until_text()
            await spared.until_text()
            buffered = asyncio.create_task(gateway.chat("victim"))
            first = await gateway.until_model("victim", leases=2)
            os.kill(first["pid"], number)
            await hit.rest()
            await spared.rest()
        assert number.name in hit.assert_failed("engine_crashed")
        spared.assert_complete(reply(80))

        answer = await buffered
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_crashed"
        assert int(answer.headers["retry-after"]) >= 1

        again = await gateway.chat("victim", max_tokens=3)
        assert again.status_code == 200
        second = await gateway.model("victim")
        assert (second["loads"], second["leases"]) == (2, 0)
        assert second["pid"] != first["pid"]
        assert (await gateway.model("steady"))["loads"] == 1
        assert gateway.process.poll() is None


async def test_a_model_that_keeps_crashing_is_backed_off(tmp_path: Path) -> None:
    broken, healthy = scripted("broken", exit_after=2), scripted("healthy")
    with daemon(registry(broken, healthy), tmp_path) as gateway:
        for _ in range(2):  # the first failure costs no wait
            async with gateway.stream("broken") as stream:
                await stream.rest()
            assert "exited with code 1" in stream.assert_failed("engine_crashed")
        answer = await gateway.chat("broken")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "load_failed"
        assert "exited with code 1" in answer.json()["error"]["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 10

        assert (await gateway.chat("healthy")).status_code == 200
        health = (await gateway.get("/health")).json()
        assert (health["status"], health["failed"]) == ("ok", ["broken"])
        model = await gateway.model("broken")
        assert (model["state"], model["loads"], model["charge_bytes"]) == ("failed", 2, 0)
        assert gateway.process.poll() is None


async def test_a_call_that_fails_in_the_model_ends_alone(tmp_path: Path) -> None:
    with daemon(registry(scripted("model", tokens_per_s=40, deltas=40)), tmp_path) as gateway:
        async with gateway.stream("model") as spared:
            await spared.until_text()
            async with gateway.stream("model", script("a ", {"raise": "no such token"})) as hit:
                await hit.rest()
            answer = await gateway.chat("model", script({"raise": "no such token"}))
            await spared.rest()
        assert "no such token" in hit.assert_failed("engine_error")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
        spared.assert_complete(reply(40))
        assert (await gateway.model("model"))["loads"] == 1
