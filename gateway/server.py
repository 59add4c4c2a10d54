"""The listener: Hypercorn's HTTP connections behind an accept loop of our own.

Hypercorn's `serve` ends with a graceful timeout that cuts streams without a word, and gives an
application no way to drop a client that has stopped reading: closing waits for the very bytes that
client will not take. So the loop that accepts is ours; each connection's application gets
`scope["extensions"]["gateway.abort"]`, which drops the connection at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import RawData, Updated

log = logging.getLogger("gateway.server")

BACKLOG = 2048
KEEP_ALIVE_S = 75
CLOSE_TIMEOUT_S = 5.0
ABORT = "gateway.abort"

SEND_TIMEOUT_S = 300.0
"""A client that does not take so little as one write for so long is gone. Streams have a shorter
bound of their own (`write_stall_s`), which tells the engine; this is for every other answer."""

LINGER_S = 60.0
"""What a closed connection still has to deliver is dropped after so long."""

BUFFER_BYTES = 2**16
"""A transport that holds no more than this lets the sender go on at once."""

RESERVED_FILES = 256
"""Descriptors that are kept for engines, files, looks at the memory, and refusals under way."""

ACCEPTED_AT_ONCE = 32
"""Few, because each of a flood of connections holds a descriptor until it is refused, some turns of
the event loop later."""

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Spelled out, because asyncio switches Nagle's algorithm off only where it sees this protocol;
    # else every answer on a kept connection waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class Server:
    """Accepts until `stop`; each connection is a task of this server."""

    def __init__(self, app: App, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener
        self._config = _hypercorn_config()
        self._context = WorkerContext(None)
        self._connections: set[asyncio.Task[Any]] = set()
        self._transports: set[asyncio.WriteTransport] = set()
        self._most = most_connections()
        self._full = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, then closes what is left, within bounds."""
        server = await asyncio.start_server(
            self._accept, sock=self._listener, backlog=ACCEPTED_AT_ONCE
        )
        self._listener.listen(BACKLOG)  # asyncio takes one figure for both
        try:
            await stop.wait()
        finally:
            server.close()
            await self._context.terminated.set()  # idle keep-alive connections close themselves
            await self._close_connections()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        transport = writer.transport
        if self._is_full():
            writer.write(FULL)
            writer.close()
            return
        self._connections.add(task)
        self._transports.add(transport)
        loop = asyncio.get_running_loop()
        app = ASGIWrapper(_with_abort(self._app, transport))
        try:
            # A connection ends with its client; what the application raised is logged by it.
            with contextlib.suppress(ConnectionError, TimeoutError):
                await _Connection(app, loop, self._config, self._context, {}, reader, writer)
        finally:
            self._connections.discard(task)
            self._transports.discard(transport)

    def _is_full(self) -> bool:
        """Whether there are as many connections as the descriptors allow; said once."""
        was_full, self._full = self._full, len(self._connections) >= self._most
        if self._full and not was_full:
            log.warning(
                "%d connections are open and no more are taken; raise the limit of open files",
                self._most,
            )
        return self._full

    async def _close_connections(self) -> None:
        if self._connections:
            await asyncio.wait(self._connections, timeout=CLOSE_TIMEOUT_S)
        for transport in list(self._transports):
            transport.abort()
        if self._connections:
            await asyncio.wait(self._connections, timeout=CLOSE_TIMEOUT_S)


class _Connection(TCPServer):  # type: ignore[misc]  # Hypercorn is untyped here
    """Ends when its client has closed it, and in any case when its client takes nothing.

    Hypercorn's own waits for its idle timer first: each kept connection that a client has closed
    would cost a descriptor for `KEEP_ALIVE_S`. And its writing and closing wait without end.
    """

    gone = False

    async def _read_data(self) -> None:
        await super()._read_data()
        self.gone = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Any) -> None:
        if self.gone and isinstance(event, Updated):
            return  # a response that ended just now would start the timer again
        if isinstance(event, RawData) and self.writer.transport.is_closing():
            return  # nobody is there, and asyncio would log each such write
        waiting = self.writer.transport.get_write_buffer_size()
        if isinstance(event, RawData) and waiting + len(event.data) > BUFFER_BYTES:
            with self._aborted_after(SEND_TIMEOUT_S):
                await super().protocol_send(event)
        else:
            await super().protocol_send(event)

    async def _close(self) -> None:
        with self._aborted_after(LINGER_S):
            await super()._close()

    @contextlib.contextmanager
    def _aborted_after(self, seconds: float) -> Iterator[None]:
        timer = self.loop.call_later(seconds, self.writer.transport.abort)
        try:
            yield
        finally:
            timer.cancel()


def most_connections() -> int:
    """How many the limit of open files leaves room for; half of it where it is very small."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**20
    return max(soft - RESERVED_FILES, soft // 2)


def _with_abort(app: App, transport: asyncio.WriteTransport) -> App:
    async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[ABORT] = transport.abort
        await app(scope, receive, send)

    return with_abort


def _hypercorn_config() -> Config:
    config = Config()
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    config.accesslog = None  # ours is one line at the end of each response
    config.errorlog = "-"
    config.h11_max_incomplete_size = 64 * 1024
    return config
