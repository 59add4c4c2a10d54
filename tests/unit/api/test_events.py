"""The event bus: bounded for whoever does not read, unnoticed by everybody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.api import events
from gateway.api.events import (
    MAX_SUBSCRIBERS,
    QUEUE_BYTES,
    QUEUE_EVENTS,
    EventBus,
    Events,
    Subscription,
)
from gateway.api.sse import COMMENT
from gateway.errors import ModelNotFound, Unavailable
from gateway.registry.find import find
from gateway.registry.load import Loaded
from gateway.registry.schema import Entry, Server
from gateway.residency import ModelSpec, Policy, Scheduler, Snapshot
from gateway.router import Router
from gateway.security.keys import LOCAL
from gateway.served import Live, Served
from gateway.server import ABORT
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

pytestmark = pytest.mark.anyio

TIMEOUT_S = 30.0


def parsed(frames: list[bytes]) -> list[dict[str, Any]]:
    for frame in frames:
        assert frame.startswith(b"data: ")
        assert frame.endswith(b"\n\n")
        assert b"\n" not in frame[:-2]
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


async def read(subscription: Subscription) -> list[dict[str, Any]]:
    return parsed(await subscription.batch(0.01))


async def test_everyone_gets_what_concerns_them_in_order() -> None:
    bus = EventBus()
    everything, only_a = bus.subscribe(), bus.subscribe("a")
    for number, model in enumerate(["a", "b", None, "a"]):
        bus.publish("step", model, number=number)
    assert [event["number"] for event in await read(everything)] == [0, 1, 2, 3]
    assert [event["number"] for event in await read(only_a)] == [0, 2, 3]
    assert await read(only_a) == []


async def test_an_event_is_one_line_whatever_its_text() -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    bus.publish("engine_exit", "a", cause="first\nsecond\r\n\n☃")
    (event,) = await read(subscription)
    assert event["cause"] == "first\nsecond\r\n\n☃"
    assert (event["type"], event["model"], event["at"] > 0) == ("engine_exit", "a", True)


async def test_who_does_not_read_loses_the_oldest_and_is_told_how_many() -> None:
    bus = EventBus()
    slow, quick = bus.subscribe(), bus.subscribe()
    seen = 0
    for number in range(QUEUE_EVENTS + 100):
        bus.publish("step", number=number)
        seen += len(await quick.batch(TIMEOUT_S))
    assert seen == QUEUE_EVENTS + 100
    missed, *rest = await read(slow)
    assert (missed["type"], missed["count"]) == ("missed", 100)
    assert [event["number"] for event in rest] == list(range(100, QUEUE_EVENTS + 100))
    bus.publish("step", number=-1)
    assert [event["number"] for event in await read(slow)] == [-1]


async def test_a_queue_is_bounded_in_bytes_too() -> None:
    bus = EventBus()
    slow = bus.subscribe()
    for _ in range(20):
        bus.publish("step", text="x" * (QUEUE_BYTES // 10))
    frames = await slow.batch(TIMEOUT_S)
    assert sum(map(len, frames[1:])) <= QUEUE_BYTES
    assert parsed(frames)[0]["count"] == 20 - (len(frames) - 1)


async def test_waiting_ends_with_an_event_and_with_the_end() -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    waiting = asyncio.create_task(subscription.batch(TIMEOUT_S))
    await asyncio.sleep(0)
    bus.publish("step")
    assert len(await waiting) == 1
    waiting = asyncio.create_task(subscription.batch(TIMEOUT_S))
    await asyncio.sleep(0)
    bus.publish("end")
    bus.close()
    assert len(await waiting) == 1
    assert (subscription.over, await subscription.batch(TIMEOUT_S)) == (True, [])
    assert bus.subscribe().over


async def test_there_is_a_limit_to_subscribers_and_leaving_makes_room() -> None:
    bus = EventBus()
    subscriptions = [bus.subscribe() for _ in range(MAX_SUBSCRIBERS)]
    with pytest.raises(Unavailable, match="64 clients"):
        bus.subscribe()
    for _ in range(2):
        bus.leave(subscriptions[0])
    assert len(bus) == MAX_SUBSCRIBERS - 1
    bus.subscribe()


async def test_what_is_said_of_a_model_that_is_gone_ends_its_own_streams() -> None:
    bus = EventBus()
    everything, only_a, only_b = bus.subscribe(), bus.subscribe("a"), bus.subscribe("b")
    bus.publish("removed", "a")
    bus.end_model("a")
    assert [s.over for s in (everything, only_a, only_b)] == [False, True, False]
    assert [event["type"] for event in await read(only_a)] == ["removed"]


# --- the routes -----------------------------------------------------------------------------------


class Still:
    """A supervisor in which nothing happens."""

    draining = False

    def __init__(self) -> None:
        self._scheduler = Scheduler(Policy(2), [ModelSpec("a", 1), ModelSpec("b", 1)])

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot(0)


class Client:
    """One client of the routes: what it was sent, and whether it takes it and stays."""

    def __init__(self, server: Server | None = None) -> None:
        self.bus, self.tasks = EventBus(), Tasks()
        models = [
            find(Entry(name=name, engine="scripted"), base=Path(), environ={}) for name in "ab"
        ]
        live = Live(Served(Loaded(), Router(models), server or Server()))
        self.events = Events(live, cast(Supervisor, Still()), self.tasks, self.bus)
        self.left, self.takes, self.answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.takes.set()
        self.sent: list[MutableMapping[str, Any]] = []
        self.aborted = False

    async def receive(self) -> MutableMapping[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.takes.wait()
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.answered.set()

    def abort(self) -> None:
        self.aborted = True
        self.takes.set()

    async def follow(self, model: str | None = None) -> None:
        scope = {
            "state": {"access": LOCAL},
            "extensions": {ABORT: self.abort},
            "path_params": {"model": model},
        }
        route = self.events.all if model is None else self.events.of_model
        async with asyncio.timeout(TIMEOUT_S):
            await route(scope, self.receive, self.send)
        assert len(self.bus) == 0

    async def subscribed(self) -> None:
        """The route has sent its snapshot, and so it listens."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.answered.wait()

    def text(self) -> list[dict[str, Any]]:
        body = b"".join(message.get("body", b"") for message in self.sent)
        return parsed([frame + b"\n\n" for frame in body.split(b"\n\n") if frame[:1] == b"d"])


async def test_a_stream_begins_with_a_snapshot_and_ends_with_the_bus() -> None:
    client = Client()
    following = asyncio.create_task(client.follow())
    await client.subscribed()
    client.bus.publish("step", "a")
    client.bus.close()
    await following
    snapshot, step = client.text()
    assert (snapshot["type"], snapshot["draining"]) == ("snapshot", False)
    assert [(m["model"], m["state"]) for m in snapshot["models"]] == [
        ("a", "unloaded"),
        ("b", "unloaded"),
    ]
    assert step["type"] == "step"
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_who_leaves_is_forgotten_at_once_and_gets_nothing_more() -> None:
    client = Client()
    following = asyncio.create_task(client.follow("a"))
    await client.subscribed()
    client.left.set()
    await following
    assert client.sent[-1]["more_body"] is True
    await client.tasks.close()
    assert len(client.tasks) == 0


async def test_who_takes_nothing_is_cut_off() -> None:
    client = Client(Server(write_stall_s=0.05))
    client.takes.clear()
    await client.follow()
    assert client.aborted


async def test_an_unknown_model_has_no_stream() -> None:
    with pytest.raises(ModelNotFound):
        await Client().follow("c")


@pytest.mark.parametrize("heartbeat_s", [0.0, 0.01])
async def test_silence_has_heartbeats_unless_they_are_off(
    heartbeat_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOOK_AGAIN_S", 0.01)
    client = Client(Server(heartbeat_s=heartbeat_s))
    following = asyncio.create_task(client.follow())
    await client.subscribed()
    subscription = next(iter(client.bus._subscriptions))
    rounds = 0
    batch = subscription.batch

    async def counted(seconds: float) -> list[bytes]:
        nonlocal rounds
        rounds += 1
        if rounds == 4:
            client.bus.close()
        return await batch(seconds)

    monkeypatch.setattr(subscription, "batch", counted)
    await following
    beats = sum(message.get("body") == COMMENT for message in client.sent)
    assert (beats > 0) is (heartbeat_s > 0)


def test_who_may_not_read_the_registry_hears_of_no_reload() -> None:
    bus = EventBus()
    guest, admin = bus.subscribe("a", reloads=False), bus.subscribe()
    bus.publish("reload", result="applied", lines=["model b: added"])
    bus.publish("pin", "a", pinned=True)
    guest.end()
    admin.end()
    queued = [asyncio.run(reader.batch(0)) for reader in (guest, admin)]
    assert [len(frames) for frames in queued] == [1, 2]
    assert b"reload" not in queued[0][0]
