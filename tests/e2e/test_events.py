"""The event stream: everything that happens, in order, without harm to anybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, registry, scripted, write
from tests.harness.stream import Stream

pytestmark = pytest.mark.anyio

ALL = "/admin/events"
Event = dict[str, Any]


@contextlib.asynccontextmanager
async def follow(gateway: Daemon, path: str = ALL) -> AsyncIterator[Stream]:
    """An event stream of which the snapshot has been read."""
    async with gateway.client() as client, client.stream("GET", path) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = Stream(response)
        first = await stream.next()
        assert first is not None
        assert first["type"] == "snapshot"
        yield stream


async def until(stream: Stream, **values: Any) -> Event:
    """Reads until an event has these values, which have to come."""
    while True:
        event = await stream.next()
        assert event is not None, f"ended without {values}: {stream.frames}"
        if all(event.get(key) == value for key, value in values.items()):
            return event


def steps(stream: Stream, model: str) -> list[tuple[str, str]]:
    """The states that a model went through, as pairs."""
    return [
        (event["from"], event["to"])
        for event in stream.frames
        if event["type"] == "transition" and event["model"] == model
    ]


async def test_a_life_is_told_in_order(tmp_path: Path) -> None:
    document = registry(scripted("a", load_s=0.2), scripted("b"), budget_gb=1)
    began = time.time()
    with daemon(document, tmp_path) as gateway:
        async with follow(gateway) as stream:
            snapshot = stream.frames[0]
            assert [model["state"] for model in snapshot["models"]] == ["unloaded", "unloaded"]
            assert (await gateway.chat("a")).status_code == 200
            assert (await gateway.chat("b")).status_code == 200
            os.kill((await gateway.model("b"))["pid"], signal.SIGKILL)
            exit_ = await until(stream, type="engine_exit", how="crashed")
            assert (exit_["model"], "SIGKILL" in exit_["cause"]) == ("b", True)
            failed = await until(stream, type="transition", to="failed")
            assert (failed["model"], failed["cause"]) == ("b", exit_["cause"])
            write(registry(scripted("a", load_s=0.2), budget_gb=1), tmp_path)
            reload = await until(stream, type="reload")
            assert reload["result"] == "applied"
            assert any("b" in line for line in reload["lines"])
        assert steps(stream, "a") == [
            ("unloaded", "loading"),
            ("loading", "ready"),
            ("ready", "unloading"),
            ("unloading", "unloaded"),
        ]
        assert steps(stream, "b") == [
            ("unloaded", "loading"),
            ("loading", "ready"),
            ("ready", "failed"),
        ]
        evicted = next(event for event in stream.frames if event["type"] == "evicted")
        assert (evicted["model"], evicted["reason"], evicted["age_s"] >= 0) == (
            "a",
            "evicted",
            True,
        )
        moments = [event["at"] for event in stream.frames]
        assert moments == sorted(moments)
        assert began - 1 <= moments[0] <= moments[-1] <= time.time() + 1


async def test_progress_of_a_load_only_grows(tmp_path: Path) -> None:
    with daemon(registry(scripted("org/a", load_s=0.5)), tmp_path) as gateway:
        async with follow(gateway, "/v1/models/org%2Fa/events") as stream:
            assert (await gateway.chat("org/a")).status_code == 200
            await until(stream, type="transition", to="ready")
        progress = [event for event in stream.frames if event["type"] == "load_progress"]
        weights = [event["done_bytes"] for event in progress if event["stage"] == "weights"]
        assert len(weights) > 2
        assert weights == sorted(weights)
        assert weights[-1] == progress[-1]["total_bytes"] == 2**30
        loaded = next(event for event in stream.frames if event["type"] == "loaded")
        assert loaded["seconds"] >= 0.5


async def test_one_models_stream_is_its_own_and_ends_with_it(tmp_path: Path) -> None:
    models = [scripted("a"), scripted("b"), {"name": "variant", "of": "a"}]
    with daemon(registry(*models), tmp_path) as gateway:
        async with follow(gateway, "/v1/models/variant/events") as stream:
            assert [model["model"] for model in stream.frames[0]["models"]] == ["a"]
            for name in ("b", "a"):
                assert (await gateway.chat(name)).status_code == 200
            await until(stream, type="transition", to="ready")
            write(registry(models[1]), tmp_path)
            await until(stream, type="removed")
            assert await stream.next() is None
        named = {event["model"] for event in stream.frames if "model" in event}
        assert named == {"a"}


async def test_refusals_pins_and_loads_given_up_are_events(tmp_path: Path) -> None:
    document = registry(
        scripted("a"), scripted("b"), budget_gb=1, contention_policy={"strategy": "fail"}
    )
    with daemon(document, tmp_path) as gateway:
        async with follow(gateway) as stream, gateway.client() as client:
            await client.post("/v1/models/a/load?wait=true")
            await client.put("/v1/models/a/pin", json={"expires_in_s": 60})
            pin = await until(stream, type="pin", model="a", pinned=True)
            assert pin["until"] == pytest.approx(time.time() + 60, abs=30)
            await gateway.chat("b")
            refused = await until(stream, type="refused", model="b", code="no_capacity")
            assert "pinned" in refused["message"]
            await client.post("/v1/models/b/load")
            given_up = await until(stream, type="given_up", model="b")
            assert "pinned" in given_up["reason"]
            await client.delete("/v1/models/a/pin")
            await until(stream, type="pin", model="a", pinned=False)


async def test_preempted_calls_are_an_event(tmp_path: Path) -> None:
    document = registry(
        scripted("a", tokens_per_s=20, deltas=10_000),
        scripted("b"),
        budget_gb=1,
        preempt_grace_s=0.1,
        contention_policy={"strategy": "preempt"},
    )
    with daemon(document, tmp_path) as gateway:
        async with follow(gateway) as stream:
            async with gateway.stream("a") as victim:
                await victim.until_text()
                assert (await gateway.chat("b")).status_code == 200
                await victim.rest()
            await until(stream, type="transition", model="a", to="draining", cause="preempted")
            ended = await until(stream, type="calls_ended", model="a")
            assert (ended["count"], ended["code"]) == (1, "preempted")


async def test_silence_is_filled_with_comments(tmp_path: Path) -> None:
    with daemon(registry(scripted("a"), server={"heartbeat_s": 0.1}), tmp_path) as gateway:
        async with follow(gateway) as stream:
            reading = asyncio.create_task(until(stream, type="transition"))
            await gateway.until(lambda _: len(stream.comments) > 1)
            assert not reading.done()
            await gateway.chat("a")
            assert (await reading)["to"] == "loading"


async def test_streams_end_with_the_gateway_and_do_not_hold_it_up(tmp_path: Path) -> None:
    with daemon(registry(scripted("a")), tmp_path) as gateway:
        async with follow(gateway) as everything, follow(gateway, "/v1/models/a/events") as one:
            assert (await gateway.chat("a")).status_code == 200
            gateway.signal(signal.SIGTERM)
            for stream in (everything, one):
                await until(stream, type="draining")
                await stream.rest()
                assert stream.frames[-1]["type"] == "end"
        assert gateway.wait() == 0


async def test_following_events_is_no_use_of_a_model(tmp_path: Path) -> None:
    with daemon(registry(scripted("a"), server={"heartbeat_s": 0.1}), tmp_path) as gateway:
        await gateway.chat("a")
        before = await gateway.model("a")
        async with follow(gateway, "/v1/models/a/events") as stream:
            reading = asyncio.create_task(stream.next())
            await gateway.until(lambda _: stream.comments)
            after = await gateway.model("a")
            reading.cancel()
        assert (after["loads"], after["leases"]) == (1, 0)
        assert after["idle_s"] > before["idle_s"]
