"""The request path of every generating route: decode, open a call, run it, encode.

A call's mailbox delivers everything that can happen to it in order: waiting for room, loading,
granted, the engine's events, a failure, the client leaving. `Answer` is what becomes of it.
Whatever ends that, `close` frees what the call still holds, synchronously.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

from engines import wire
from gateway import __version__
from gateway.api.answer import Answer, Terms
from gateway.api.body import discard_body, read_body
from gateway.api.call_group import CallGroup
from gateway.api.deadline import Deadline, deadline_of
from gateway.api.dialect import (
    AnyDecoded,
    Defaults,
    Dialect,
    Make,
)
from gateway.api.gathering import Gathering, Place
from gateway.api.media import Gathered, Media, remove
from gateway.api.requests import cancellable, serial_of
from gateway.api.sse import (
    EventStream,
    FileStream,
    WatchedSend,
    refuse,
    watch_disconnect,
)
from gateway.errors import BodyTooLarge, ClientGone, ClientTooSlow, GatewayError
from gateway.metrics import Metrics
from gateway.registry.find import Model
from gateway.registry.schema import Server
from gateway.router import served_by
from gateway.security.keys import access_of
from gateway.served import Live, Served
from gateway.server import Receive, Scope, Send
from gateway.supervisor.call import Call
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

prompts = logging.getLogger("gateway.prompts")

LOGGED_BYTES = 4096
"""Of a request's body, where the operator wants it in the log."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[AnyDecoded]):
    """A request with the model and the settings that it met; it `began` in loop time.

    Whoever opens its calls removes the files of its `media` when these are closed.
    """

    decoded: AnyDecoded
    model: Model
    server: Server
    began: float
    deadline: Deadline
    media: Gathered = field(default_factory=Gathered)


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
        self._gathering = Gathering(media, supervisor)
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
            unread = isinstance(error, BodyTooLarge) or scope["state"]["unread"]
            linger = partial(discard_body, receive) if unread else None
            form = self._dialect.errors
            body = form.body(error, scope["state"]["request_id"])
            await refuse(send, error, body, linger, form.status(error))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = asyncio.get_running_loop().time()
        served = self._live.now  # one registry for the whole of this request
        decoded = await self._read(scope, receive, served.server)
        try:
            await self._run_decoded(decoded, served, began, scope, receive, send)
        finally:
            remove(decoded.uploads)

    async def _read(self, scope: Scope, receive: Receive, server: Server) -> AnyDecoded:
        """The request, decoded. Files that came with it are there until somebody removes them."""
        if not self._dialect.form:
            # Not to be kept: it is up to the cap in bytes, and the call may wait for long.
            body = await read_body(scope, receive, server.max_body_mb * 2**20)
            if server.log_prompts:
                prompts.info("%s: %s", scope["state"]["request_id"], body[:LOGGED_BYTES])
            return self._decode(body, scope)
        form = await self._media.uploads.read(scope, receive, server)
        try:
            return self._dialect.decode(form)
        except BaseException:
            remove((form.file,))
            raise

    async def _run_decoded(
        self,
        decoded: AnyDecoded,
        served: Served,
        began: float,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        access = access_of(scope)
        model = access.router(served.router).resolve(decoded.model, *self._dialect.kinds)
        scope["state"]["model"] = model.entry.name
        wish = access.wish(decoded.wish)
        decoded = dataclasses.replace(
            decoded, fingerprint=_fingerprint(model), wish=wish, serial=serial_of(scope)
        )
        deadline = deadline_of(began, decoded.timeout_s, served.server)
        place = Place(model, served, deadline)
        with self._metrics.in_flight.labels(model.entry.name).track_inprogress():
            media = await self._gathering.gather(decoded, place, scope, receive)
            asked = Asked(decoded, model, served.server, began, deadline, media)
            await self._serve(asked, scope, receive, send)

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
            if decoded.raw is not None:
                await answer.file(FileStream(out, decoded.raw))
            elif decoded.stream:
                assert self._dialect.stream is not None
                await answer.stream(self._dialect.stream(decoded), EventStream(out))
            else:
                assert self._dialect.buffered is not None
                encoder = self._dialect.buffered(decoded)
                await answer.whole(encoder, out, decoded.answer_type, large=self._dialect.large)

    def _answer(self, asked: Asked[AnyDecoded], calls: list[Call], scope: Scope) -> Answer:
        source = calls[0] if len(calls) == 1 else CallGroup(calls, asked.decoded.n)
        terms = Terms(asked.server, asked.deadline, asked.model.entry.stream_interval)
        credit = partial(self._supervisor.credit, calls[0]) if self._dialect.credited else None
        return Answer(source, terms, scope, self._first_token(asked, scope), credit)

    def _open(self, asked: Asked[AnyDecoded], held: contextlib.ExitStack) -> list[Call]:
        """Every call of the request, each closed when `held` ends, and then its media removed.

        Raises as `Supervisor.open`.
        """
        held.callback(remove, asked.media.files)
        model, decoded = asked.model, asked.decoded
        defaults, calls = _defaults(model), []
        for make in (decoded.make, *decoded.others):
            call = self._supervisor.open(
                served_by(model),
                partial(_made, make, defaults, asked.media),
                decoded.wish,
                model.entry.name,
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

    def _first_token(self, asked: Asked[AnyDecoded], scope: Scope) -> Callable[[], None]:
        seconds = self._metrics.time_to_first_token.labels(asked.model.entry.name)
        loop = asyncio.get_running_loop()

        def note() -> None:
            passed = loop.time() - asked.began
            scope["state"]["ttft_s"] = round(passed, 4)
            seconds.observe(passed)

        return note


def _made(make: Make, defaults: Defaults, media: Gathered, call_id: int) -> wire.Request:
    return media.into(make(call_id, defaults))


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
