"""The request path of every generating route: decode, open a call, run it, encode.

A call's mailbox delivers everything that can happen to it in order: waiting for room, loading,
granted, the engine's events, a failure, the client leaving. So each of the two ways to answer is
one loop. Whatever ends the loop, `close` frees what the call still holds, synchronously.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from engines import wire
from gateway import __version__
from gateway.api.body import discard_body, read_body
from gateway.api.call_group import CallGroup, Source
from gateway.api.coalesce import Coalescer
from gateway.api.dialect import (
    AnyDecoded,
    BodyEncoder,
    Decoded,
    Defaults,
    Dialect,
    Make,
    StreamEncoder,
)
from gateway.api.media import Media, refuse_images, remove
from gateway.api.requests import cancellable, serial_of
from gateway.api.sse import EventStream, WatchedSend, refuse, respond, watch_disconnect
from gateway.errors import BodyTooLarge, ClientGone, ClientTooSlow, GatewayError, RequestTimeout
from gateway.metrics import Metrics
from gateway.registry.find import Model
from gateway.registry.schema import Server
from gateway.residency import Phase
from gateway.router import served_by
from gateway.security.keys import access_of
from gateway.security.media import MediaFile
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.call import Call, CallFailed, CallItem, ClientLeft, Granted
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

COMMIT_WHEN_SERVED_S = 1.0
"""Once its load has begun or its model is ready, a stream commits at the latest after this."""

HOLD_S = 0.5
"""Text that waits to be joined with more of it is sent after so long in any case."""

LOOK_AGAIN_S = 60.0
"""The supervisor ends every call; this only bounds each single wait for it."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[AnyDecoded]):
    """A request with the model and the settings that it met; it `began` in loop time.

    `files` are its images. Whoever opens its calls removes them when these are closed.
    """

    decoded: AnyDecoded
    model: Model
    server: Server
    began: float
    files: tuple[MediaFile, ...] = ()


class Exchange(Generic[AnyDecoded]):
    """The ASGI application of one dialect's route."""

    def __init__(
        self,
        dialect: Dialect[AnyDecoded],
        live: Live,
        supervisor: Supervisor,
        tasks: Tasks,
        metrics: Metrics,
        media: Media,
    ) -> None:
        self._dialect = dialect
        self._media = media
        self._live = live
        self._supervisor = supervisor
        self._tasks = tasks
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._run(scope, receive, send)
        except GatewayError as error:
            scope["state"]["error"] = error.code
            if isinstance(error, ClientGone):
                return
            # A client that is still sending gets a reset, and not this, if we close at once.
            too_large = isinstance(error, BodyTooLarge)
            linger = partial(discard_body, receive) if too_large else None
            form = self._dialect.errors
            body = form.body(error, scope["state"]["request_id"])
            await refuse(send, error, body, linger, form.status(error))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = asyncio.get_running_loop().time()
        served = self._live.now  # one registry for the whole of this request
        body = await read_body(scope, receive, served.server.max_body_mb * 2**20)
        decoded = self._decode(body, scope)
        del body  # up to the cap in bytes, and the call may wait for long
        access = access_of(scope)
        model = access.router(served.router).resolve(decoded.model, *self._dialect.kinds)
        scope["state"]["model"] = model.entry.name
        if model.entry.kind != "vision":
            refuse_images(decoded.media, model.entry.name)
        wish = access.wish(decoded.wish)
        decoded = dataclasses.replace(
            decoded, fingerprint=_fingerprint(model), wish=wish, serial=serial_of(scope)
        )
        files = await self._media.fetch(decoded.media, served.server, receive)
        await self._serve(Asked(decoded, model, served.server, began, files), scope, receive, send)

    def _decode(self, body: bytes, scope: Scope) -> AnyDecoded:
        return self._dialect.decode(body)

    async def _serve(
        self, asked: Asked[AnyDecoded], scope: Scope, receive: Receive, send: Send
    ) -> None:
        decoded = asked.decoded
        with contextlib.ExitStack() as held:
            calls = self._open(asked, held)
            self._watch(receive, calls, held)
            cancellable(scope, partial(self._cancel, calls))
            stall_s = asked.server.write_stall_s
            out = held.enter_context(
                WatchedSend(scope, send, stall_s, lambda: self._too_slow(scope, calls))
            )
            answer = self._answer(asked, calls, scope)
            if decoded.stream:
                await answer.stream(self._dialect.stream(decoded), EventStream(out))
            else:
                await answer.whole(self._dialect.buffered(decoded), out)

    def _answer(self, asked: Asked[AnyDecoded], calls: list[Call], scope: Scope) -> Answer:
        source = calls[0] if len(calls) == 1 else CallGroup(calls, asked.decoded.n)
        terms = _terms(asked.began, asked.decoded, asked.model, asked.server)
        return Answer(source, terms, scope, self._first_token(asked.model, asked.began))

    def _open(self, asked: Asked[AnyDecoded], held: contextlib.ExitStack) -> list[Call]:
        """Every call of the request, each closed when `held` ends, and then its images removed.

        Raises as `Supervisor.open`.
        """
        held.callback(remove, asked.files)
        model, decoded = asked.model, asked.decoded
        defaults, calls = _defaults(model), []
        for make in (decoded.make, *decoded.others):
            call = self._supervisor.open(
                served_by(model), partial(_made, make, defaults), decoded.wish
            )
            held.callback(self._supervisor.close, call)
            calls.append(call)
        return calls

    def _watch(self, receive: Receive, calls: list[Call], held: contextlib.ExitStack) -> None:
        """Tells the calls, until `held` ends, when the client goes away."""

        def left() -> None:
            for call in calls:
                self._supervisor.client_left(call)

        watcher = self._tasks.supervised(
            f"disconnect of call {calls[0].id}", watch_disconnect(receive, left), lambda _: left()
        )
        held.callback(watcher.cancel)

    def _cancel(self, calls: list[Call], error: GatewayError) -> None:
        for call in calls:
            self._supervisor.cancel(call, error)

    def _too_slow(self, scope: Scope, calls: list[Call]) -> None:
        scope["state"]["error"] = ClientTooSlow.code
        for call in calls:
            self._supervisor.too_slow(call)

    def _first_token(self, model: Model, began: float) -> Callable[[], None]:
        seconds = self._metrics.time_to_first_token.labels(model.entry.name)
        loop = asyncio.get_running_loop()
        return lambda: seconds.observe(loop.time() - began)


@dataclass(frozen=True, slots=True)
class Terms:
    """How one answer is given: its time is over at `until` (loop time), after `timeout_s`.

    `interval` is the number of tokens in one event.
    """

    server: Server
    until: float
    timeout_s: float | None
    interval: int


class Answer:
    """One request on its way from its calls to the client. `on_first_token` is called once."""

    def __init__(
        self, source: Source, terms: Terms, scope: Scope, on_first_token: Callable[[], None]
    ) -> None:
        self._source = source
        self._terms = terms
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._on_first_token: Callable[[], None] | None = on_first_token

    async def whole(self, encoder: BodyEncoder, send: Send) -> None:
        """Answers with one body, when everything is there. Raises what ended the call early."""
        while True:
            items = await self._batch(self._loop.time() + LOOK_AGAIN_S)
            self._look(items)
            encoder.add(items)
            if _is_over(items):
                await respond(send, 200, encoder.body())
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
        return await self._source.batch(min(deadline, self._terms.until))

    def _look_at_clock(self) -> None:
        """Raises `RequestTimeout` once the time of the request is over."""
        if self._loop.time() >= self._terms.until:
            raise RequestTimeout(
                f"the request took longer than its timeout of {self._terms.timeout_s:g} s"
            )

    def _look(self, items: Sequence[CallItem]) -> None:
        """Notes the first token; raises what ended the call before its end, if anything did."""
        for item in items:
            if type(item) in _TOKENS:
                if self._on_first_token is not None:
                    self._on_first_token()
                    self._on_first_token = None
            elif type(item) is CallFailed:
                raise item.error
            elif type(item) is ClientLeft:
                raise ClientGone("the client left")


_TOKENS = frozenset({wire.TextDelta, wire.ReasoningDelta, wire.ToolCallStart})


def _made(make: Make, defaults: Defaults, call_id: int) -> wire.Request:
    return make(call_id, defaults)


def _terms(began: float, decoded: Decoded, model: Model, server: Server) -> Terms:
    """The client's own timeout goes before the operator's."""
    timeout_s = decoded.timeout_s or server.request_timeout_s
    until = began + timeout_s if timeout_s else float("inf")
    return Terms(server, until, timeout_s, model.entry.stream_interval)


def _fingerprint(model: Model) -> str | None:
    """Of the model's files and of this gateway; None where there are no files."""
    if model.size is None or not model.size.fingerprint:
        return None
    text = f"{__version__} {model.size.fingerprint}"
    return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _defaults(model: Model) -> Defaults:
    entry = model.entry
    return Defaults(
        temperature=entry.temperature,
        top_p=entry.top_p,
        top_k=entry.top_k,
        min_p=entry.min_p,
        max_tokens=entry.max_tokens,
        template_kwargs=entry.chat_template_kwargs,
        parsers=wire.Parsers(entry.tool_parser or "auto", entry.reasoning_parser or "auto"),
    )


def _held_until(coalescer: Coalescer, now: float) -> float:
    return now + HOLD_S if coalescer.holding else float("inf")


def _is_over(items: Sequence[CallItem]) -> bool:
    return bool(items) and type(items[-1]) is wire.Finished


def _is_served(items: Sequence[CallItem]) -> bool:
    return any(item is Phase.LOADING or isinstance(item, Granted) for item in items)
