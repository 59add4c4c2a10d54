"""The listening socket, and connections whose clients do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator

import pytest

from gateway import server
from gateway.cli.serve import _raise_file_limit as raise_file_limit

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


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSE = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


class Serving(server.Server):
    """A server whose answer is so many bytes; `ended` is set when a connection has ended."""

    def __init__(self, listener: socket.socket, size: int) -> None:
        async def app(scope: server.Scope, receive: server.Receive, send: server.Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            body = bytes(size)
            for at in range(0, size, 2**16):
                piece = body[at : at + 2**16]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        super().__init__(app, listener)
        self.ended = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._accept(reader, writer)
        self.ended.set()


@contextlib.asynccontextmanager
async def serving(
    size: int, kernel_bytes: int | None = None, kind: type[Serving] = Serving
) -> AsyncIterator[Serving]:
    listener = server.bind("127.0.0.1", 0)
    if kernel_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel_bytes)
    made, stop = kind(listener, size), asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(made.run(stop))
        try:
            yield made
        finally:
            stop.set()


def client_of(made: Serving, kernel_bytes: int | None = None) -> socket.socket:
    client = socket.socket()
    if kernel_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kernel_bytes)
    client.connect(made._listener.getsockname())
    return client


async def test_a_kept_connection_ends_with_its_client() -> None:
    """Not with the keep-alive time-out: each would hold a descriptor until then."""
    async with serving(0) as made:
        reader, writer = await asyncio.open_connection(*made._listener.getsockname())
        for _ in range(2):  # it is kept in between
            writer.write(GET)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n0\r\n\r\n")
        assert not made.ended.is_set()
        writer.close()
        await made.ended.wait()


async def test_a_client_that_takes_nothing_of_an_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "SEND_TIMEOUT_S", 0.01)
    async with serving(2**24, kernel_bytes=4096) as made:
        with client_of(made, kernel_bytes=4096) as client:
            client.sendall(GET)
            await made.ended.wait()


async def test_a_client_that_leaves_the_rest_of_an_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "LINGER_S", 0.01)
    async with serving(60_000, kernel_bytes=4096) as made:
        with client_of(made, kernel_bytes=4096) as client:
            client.sendall(CLOSE)
            await made.ended.wait()


async def test_descriptors_are_left_for_engines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "most_connections", lambda: 1)
    async with serving(0) as made:
        host, port = made._listener.getsockname()
        first_reader, first = await asyncio.open_connection(host, port)
        first.write(GET)
        assert b" 200 " in await first_reader.readuntil(b"\r\n\r\n0\r\n\r\n")
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, port)
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
        made.ended.clear()
        first.close()
        await made.ended.wait()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(CLOSE)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert caplog.text.count("1 connections are open and no more are taken") == 1


async def test_a_flood_never_holds_more_descriptors_than_are_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "most_connections", lambda: 1)
    raise_file_limit()
    flood, most, refused = server.RESERVED_FILES + 64, 0, 0
    all_refused = asyncio.Event()

    class Counting(Serving):
        async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal most, refused
            most = max(most, len(os.listdir("/dev/fd")))
            refused += self._is_full()
            if refused == flood:
                all_refused.set()
            await super()._accept(reader, writer)

    async with serving(0, kind=Counting) as made:
        reader, first = await asyncio.open_connection(*made._listener.getsockname())
        first.write(GET)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n0\r\n\r\n")
        clients = [client_of(made) for _ in range(flood)]  # the kernel takes them, not yet we
        before = len(os.listdir("/dev/fd"))
        await all_refused.wait()
        for client in clients:
            client.close()
        first.close()
    assert most - before < server.RESERVED_FILES


@pytest.mark.parametrize(
    ("soft", "most"), [(10240, 9984), (256, 128), (resource.RLIM_INFINITY, 2**20)]
)
def test_how_many_connections(soft: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, resource.RLIM_INFINITY))
    assert server.most_connections() == most
