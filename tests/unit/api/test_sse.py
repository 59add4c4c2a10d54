"""Answers on their way to a client, which may take them or not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.sse import (
    PIECE_BYTES,
    EventStream,
    WatchedSend,
    respond,
    watch_disconnect,
)
from gateway.server import ABORT, Scope

pytestmark = pytest.mark.anyio

STALL_S = 0.02
TIMEOUT_S = 30.0


class Client:
    """Takes messages while `reads` is set; dropping the connection lets go of a waiting one."""

    def __init__(self) -> None:
        self.messages: list[Scope] = []
        self.events: list[str] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.scope: Scope = {"extensions": {ABORT: self.abort}}

    def abort(self) -> None:
        self.events.append("aborted")
        self.reads.set()

    def stalled(self) -> None:
        self.events.append("stalled")

    async def send(self, message: Scope) -> None:
        await self.reads.wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def test_a_client_that_takes_everything_is_left_alone() -> None:
    client = Client()
    with WatchedSend(client.scope, client.send, STALL_S, client.stalled) as send:
        for _ in range(3):
            await send({"type": "x"})
            await asyncio.sleep(STALL_S)  # silence of ours is no fault of the client
    assert (len(client.messages), client.events) == (3, [])


async def test_a_client_that_takes_nothing_is_dropped() -> None:
    client = Client()
    client.reads.clear()
    with WatchedSend(client.scope, client.send, STALL_S, client.stalled) as send:
        async with asyncio.timeout(TIMEOUT_S):
            await send({"type": "x"})
    assert client.events == ["stalled", "aborted"]


async def test_a_message_under_way_is_given_its_whole_time() -> None:
    client = Client()
    loop = asyncio.get_running_loop()
    with WatchedSend(client.scope, client.send, STALL_S, client.stalled) as send:
        await asyncio.sleep(STALL_S / 2)
        client.reads.clear()
        began = loop.time()
        async with asyncio.timeout(TIMEOUT_S):
            await send({"type": "x"})
    assert loop.time() >= began + STALL_S


async def test_once_the_answer_is_over_nothing_is_dropped() -> None:
    client = Client()
    with WatchedSend(client.scope, client.send, STALL_S, client.stalled):
        pass
    await asyncio.sleep(STALL_S * 2)
    assert client.events == []


async def test_the_headers_of_a_stream_go_out_with_its_first_frame() -> None:
    client = Client()
    stream = EventStream(client.send)
    assert (stream.committed, client.messages) == (False, [])
    await stream.write(b"a")
    await stream.write(b"b")
    await stream.end()
    assert stream.committed
    start, *bodies = client.messages
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    assert dict(start["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert [(body["body"], body["more_body"]) for body in bodies] == [
        (b"a", True),
        (b"b", True),
        (b"", False),
    ]


async def test_long_bodies_go_out_in_pieces_that_a_slow_client_can_take_in_time() -> None:
    text = bytes(range(256)) * (PIECE_BYTES // 100)
    streamed, whole = Client(), Client()
    await EventStream(streamed.send).write(text)
    await respond(whole.send, 200, text)
    for client in (streamed, whole):
        assert client.body == text
        assert max(len(message.get("body", b"")) for message in client.messages) == PIECE_BYTES
    assert whole.messages[-1]["more_body"] is False
    length = dict(whole.messages[0]["headers"])[b"content-length"]
    assert int(length) == len(text)


async def test_a_disconnect_is_noticed_once_and_nothing_else_is() -> None:
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])
    left: list[str] = []

    async def receive() -> dict[str, Any]:
        return next(messages)

    await watch_disconnect(receive, lambda: left.append("left"))
    assert left == ["left"]
