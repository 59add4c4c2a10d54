"""The listening socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway import server

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_small_answers_are_not_held_back(host: str) -> None:
    """Nagle's algorithm is off on what is accepted; it costs 40 ms on every kept connection."""
    try:
        listener = server.bind(host, 0)
    except OSError:
        assert host == "::1", "a machine without IPv4"
        return
    nodelay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        nodelay.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(accepted, sock=listener):
        _, writer = await asyncio.open_connection(host, listener.getsockname()[1])
        async with asyncio.timeout(30):
            assert await nodelay
        writer.close()
        await writer.wait_closed()


def test_a_taken_port_is_an_error_and_leaves_nothing_open() -> None:
    with server.bind("127.0.0.1", 0) as first, pytest.raises(OSError, match="in use"):
        server.bind("127.0.0.1", first.getsockname()[1])


async def test_a_kept_connection_ends_with_its_client() -> None:
    """Not with the keep-alive time-out: each would hold a descriptor until then."""
    ended = asyncio.Event()

    async def app(scope: server.Scope, receive: server.Receive, send: server.Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    class Watched(server.Server):
        async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await super()._accept(reader, writer)
            ended.set()

    listener = server.bind("127.0.0.1", 0)
    stop = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(Watched(app, listener).run(stop))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for _ in range(2):  # it is kept in between
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
        assert not ended.is_set()
        writer.close()
        await ended.wait()
        stop.set()
