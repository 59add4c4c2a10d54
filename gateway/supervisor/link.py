"""The gateway's end of an engine's socket: frames in, frames out, no decisions.

Reading never stops, so an engine can always write. An engine that takes none of what waits for it
is as good as hung, and the link says so by failing. How much can wait is bounded by those who send:
by the calls that a model may run at a time, and the questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from engines import wire

UNSENT_BYTES = 4 * wire.MAX_REQUEST_BYTES
"""With more than this unsent, the engine is watched for whether it reads at all: a few large
requests that were granted together are more, for a moment, and no fault."""

STALL_S = 15.0
"""An engine that has read nothing for so long has stopped reading."""


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
        self._given = 0
        self._stall: asyncio.TimerHandle | None = None

    def hand_over(self, receiver: Receiver) -> None:
        """From the next message on, somebody else listens."""
        self._receiver = receiver

    def send(self, message: wire.ToEngine) -> None:
        """Queues a frame; once the link is lost it does nothing, for the engine is going."""
        self.send_frame(wire.encode(message))

    def send_frame(self, frame: bytes) -> None:
        if self._transport is None or self._lost:
            return
        self._given += len(frame)
        self._transport.write(frame)

    def close(self) -> None:
        """Ends it without a word to the receiver, who has nothing more to hear."""
        self._lost = True
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def pause_writing(self) -> None:
        """The transport holds more than `UNSENT_BYTES`."""
        loop = asyncio.get_running_loop()
        self._stall = loop.call_later(STALL_S, self._look, self._taken())

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

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

    def _taken(self) -> int:
        assert self._transport is not None
        return self._given - self._transport.get_write_buffer_size()

    def _look(self, taken_before: int) -> None:
        if self._taken() == taken_before:
            self._lose("the engine has stopped reading its requests")
        else:
            self.pause_writing()

    def _lose(self, reason: str) -> None:
        if self._lost:
            return
        self.close()
        self._receiver.on_link_lost(reason)
