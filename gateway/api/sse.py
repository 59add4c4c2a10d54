"""The ways an answer leaves: one body, a stream of events, or a file while it is made.

`send` to a client that has stopped reading neither fails nor returns, so a timer of this response
drops the connection. What was generated stays where it is, bounded, and the lease does not depend
on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

from gateway.api.errors import JSON, headers
from gateway.errors import GatewayError
from gateway.server import ABORT, Receive, Scope, Send

NO_CACHE = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), *NO_CACHE]

COMMENT = b": waiting\n\n"
"""What keeps a silent stream alive without being an event: every client ignores it."""

PIECE_BYTES = 2**17


class WatchedSend:
    """`send`, watched: a message that takes longer than `stall_s` drops the connection.

    As a context manager it watches while the answer lasts. Before the connection goes, `on_stall`
    hears of it.
    """

    def __init__(
        self, scope: Scope, send: Send, stall_s: float, on_stall: Callable[[], None]
    ) -> None:
        self._send = send
        self._abort: Callable[[], None] | None = scope.get("extensions", {}).get(ABORT)
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        self._began = self._loop.time()
        await self._send(message)
        self._began = None

    def abort(self) -> None:
        """Drops the connection at once, so that what was sent cannot be taken for the whole."""
        if self._abort is not None:
            self._abort()

    def __enter__(self) -> WatchedSend:
        self._timer = self._loop.call_later(self._stall_s, self._check)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """Re-arms itself; with a message under way, for the moment that it would be stalled."""
        now = self._loop.time()
        began = self._began
        if began is not None and now >= began + self._stall_s:
            self._timer = None
            self._on_stall()
            self.abort()
            return
        self._timer = self._loop.call_at((began or now) + self._stall_s, self._check)


class EventStream:
    """One event stream; the headers go out with the first write."""

    def __init__(self, send: Send) -> None:
        self.committed = False
        self._send = send

    async def write(self, frames: bytes) -> None:
        if not self.committed:
            self.committed = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
            )
        await _send_pieces(self._send, frames)

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class FileStream:
    """One file of a media type, sent while it is made; the headers go out with its first bytes."""

    def __init__(self, send: WatchedSend, media_type: str) -> None:
        self.committed = False
        self._send = send
        self._media_type = media_type

    async def write(self, data: bytes) -> None:
        if not self.committed:
            self.committed = True
            lines = [(b"content-type", self._media_type.encode()), *NO_CACHE]
            await self._send({"type": "http.response.start", "status": 200, "headers": lines})
        await _send_pieces(self._send, data)

    async def end(self) -> None:
        await self.write(b"")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def cut(self) -> None:
        """It stays incomplete: the client has to see that, and there is no place for words."""
        self._send.abort()


async def _send_pieces(send: Send, body: bytes) -> None:
    """So that a slow client, which takes some of it in time, is not taken for a stalled one."""
    for at in range(0, len(body), PIECE_BYTES):
        piece = body[at : at + PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def respond(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """One whole body."""
    lines = [*(headers or [JSON]), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await _send_pieces(send, body)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse(
    send: Send,
    error: GatewayError,
    body: bytes,
    before_end: Callable[[], Awaitable[None]] | None = None,
    status: int | None = None,
) -> None:
    """An error as a whole answer, with the headers that tell a client whether to come again.

    `before_end` runs when the client has everything and the connection may not close yet. `status`
    replaces the error's own.
    """
    lines = [*headers(error), (b"content-length", str(len(body)).encode())]
    start = {"type": "http.response.start", "status": status or error.status, "headers": lines}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if before_end is not None:
        await before_end()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def watch_disconnect(receive: Receive, on_left: Callable[[], None]) -> None:
    """Waits, for as long as the request lasts, for the client to go away."""
    while True:
        message: MutableMapping[str, Any] = await receive()
        if message["type"] == "http.disconnect":
            on_left()
            return
