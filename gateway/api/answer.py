"""One request's answer, from its calls to the client: as a file, as one body, or as events.

A call's mailbox delivers everything that can happen to it in order, so each way to answer is one
loop, and whatever ends the call early is raised by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines import wire
from gateway.api.call_group import Source
from gateway.api.coalesce import Coalescer
from gateway.api.deadline import Deadline
from gateway.api.dialect import BodyEncoder, StreamEncoder
from gateway.api.errors import JSON
from gateway.api.sse import EventStream, FileStream, respond
from gateway.errors import ClientGone, GatewayError
from gateway.registry.schema import Server
from gateway.residency import Phase
from gateway.server import Scope, Send
from gateway.supervisor.call import CallFailed, CallItem, ClientLeft, Granted

COMMIT_WHEN_SERVED_S = 1.0
"""Once its load has begun or its model is ready, a stream commits at the latest after this."""

HOLD_S = 0.5
"""Text that waits to be joined with more of it is sent after so long in any case."""

LOOK_AGAIN_S = 60.0
"""The supervisor ends every call; this only bounds each single wait for it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How one answer is given; `interval` is the number of tokens in one event."""

    server: Server
    deadline: Deadline
    interval: int


class Answer:
    """One request on its way from its calls to the client. `on_first_token` is called once.

    `credit` hears of the bytes that the client has taken of an answer that is sent by credit.
    """

    def __init__(
        self,
        source: Source,
        terms: Terms,
        scope: Scope,
        on_first_token: Callable[[], None],
        credit: Callable[[int], None] | None = None,
    ) -> None:
        self._source = source
        self._terms = terms
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._on_first_token: Callable[[], None] | None = on_first_token
        self._credit = credit

    async def file(self, out: FileStream) -> None:
        """Answers with the bytes of a file as they come. Raises what ended it before the first."""
        try:
            while True:
                items = await self._batch(self._loop.time() + LOOK_AGAIN_S)
                for item in items:
                    if type(item) is wire.Bytes:
                        await out.write(item.data)
                    self._look((item,))
                if _is_over(items):
                    await out.end()
                    return
                self._look_at_clock()
        except GatewayError as error:
            if isinstance(error, ClientGone) or not out.committed:
                raise
            self._scope["state"]["error"] = error.code
            out.cut()

    async def whole(
        self,
        encoder: BodyEncoder,
        send: Send,
        content_type: bytes = JSON[1],
        *,
        large: bool = False,
    ) -> None:
        """Answers with one body, when everything is there. Raises what ended the call early."""
        while True:
            items = await self._batch(self._loop.time() + LOOK_AGAIN_S)
            self._look(items)
            encoder.add(items)
            if _is_over(items):
                body = await asyncio.to_thread(encoder.body) if large else encoder.body()
                await respond(send, 200, body, [(b"content-type", content_type)])
                return
            self._look_at_clock()

    async def stream(self, encoder: StreamEncoder, out: EventStream) -> None:
        """Answers with events. Raises what ended the call before the first byte."""
        try:
            await self._pump(encoder, out)
        except GatewayError as error:
            if isinstance(error, ClientGone) or not out.committed:
                raise
            # After the first byte a failure is an event.
            self._scope["state"]["error"] = error.code
            await out.write(encoder.error(error))
            await out.end()

    async def _pump(self, encoder: StreamEncoder, out: EventStream) -> None:
        """From the mailbox to the stream, until the call is over. Raises what ended it early."""
        loop, server = self._loop, self._terms.server
        coalescer = Coalescer(self._terms.interval) if self._terms.interval > 1 else None
        beat = server.heartbeat_s or float("inf")
        deadline = loop.time() + server.commit_after_s
        while True:
            if coalescer is None:
                items = await self._batch(deadline)
                frames = encoder.frames(items)
            else:
                items = await self._batch(min(deadline, _held_until(coalescer, loop.time())))
                frames = encoder.frames(coalescer.add(items) if items else coalescer.flush())
            if frames:
                await out.write(b"".join(frames))
            self._look(items)
            if _is_over(items):
                await out.end()
                return
            self._look_at_clock()
            if not frames and (not items or loop.time() >= deadline):
                # Not every item has a frame: a prefill can be silent for long and full of news.
                frames = [encoder.heartbeat()]
                await out.write(frames[0])
            if frames:
                deadline = loop.time() + beat
            elif not out.committed and _is_served(items):
                deadline = min(deadline, loop.time() + COMMIT_WHEN_SERVED_S)

    async def _batch(self, deadline: float) -> list[CallItem]:
        return await self._source.batch(min(deadline, self._terms.deadline.at))

    def _look_at_clock(self) -> None:
        """Raises `RequestTimeout` once the time of the request is over."""
        self._terms.deadline.check(self._loop.time())

    def _look(self, items: Sequence[CallItem]) -> None:
        """Notes the first token; raises what ended the call before its end, if anything did."""
        for item in items:
            if type(item) in _TOKENS:
                if self._on_first_token is not None:
                    self._on_first_token()
                    self._on_first_token = None
                if type(item) is wire.Bytes and self._credit is not None:
                    self._credit(len(item.data))
            elif type(item) is wire.Finished:
                self._scope["state"]["finished"] = item
            elif type(item) is CallFailed:
                raise item.error
            elif type(item) is ClientLeft:
                raise ClientGone("the client left")


_TOKENS = frozenset(
    {wire.TextDelta, wire.ReasoningDelta, wire.ToolCallStart, wire.Bytes, wire.Segment}
)


def _held_until(coalescer: Coalescer, now: float) -> float:
    return now + HOLD_S if coalescer.holding else float("inf")


def _is_over(items: Sequence[CallItem]) -> bool:
    return bool(items) and type(items[-1]) is wire.Finished


def _is_served(items: Sequence[CallItem]) -> bool:
    return any(item is Phase.LOADING or isinstance(item, Granted) for item in items)
