"""The gateway's end of an engine's socket: frames in, frames out, no decisions.

Reading never stops, so an engine can always write. Writing is bounded: an engine that does not
read its requests is as good as hung, and the link says so by failing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from engines import wire

UNSENT_BYTES = 4 * wire.MAX_REQUEST_BYTES
"""More than this unsent to an engine means that it has stopped reading."""


class Receiver(Protocol):
    def on_message(self, message: wire.FromEngine) -> None:
        """Takes one message; must not raise."""

    def on_link_lost(self, reason: str) -> None:
        """Called once, when nothing can be read any more."""


class Link(asyncio.Protocol):
    """A connection to one engine; `send` is synchronous and never blocks."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._decoder = wire.events_decoder()
        self._transport: asyncio.Transport | None = None
        self._lost = False

    def hand_over(self, receiver: Receiver) -> None:
        """From the next message on, somebody else listens."""
        self._receiver = receiver

    def send(self, message: wire.ToEngine) -> None:
        """Queues a frame; once the link is lost it does nothing, for the engine is going."""
        self.send_frame(wire.encode(message))

    def send_frame(self, frame: bytes) -> None:
        if self._transport is None or self._lost:
            return
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self._lose("the engine has stopped reading its requests")

    def close(self) -> None:
        """Ends it without a word to the receiver, who has nothing more to hear."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except wire.WireError as error:
            self._lose(f"protocol error: {error}")
            return
        on_message: Callable[[wire.FromEngine], None] = self._receiver.on_message
        for message in messages:
            on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the engine closed its connection")

    def _lose(self, reason: str) -> None:
        if self._lost:
            return
        self.close()
        self._receiver.on_link_lost(reason)
