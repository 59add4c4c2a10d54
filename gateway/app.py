"""The route table and what lies around every route: request id, log line, errors, metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.routing import Router as Routes

from engines import wire
from gateway import errors
from gateway.api import (
    chat,
    chat_encode,
    completions,
    embeddings,
    messages,
    messages_encode,
    rerank,
    speech,
    transcriptions,
    transcriptions_encode,
    web,
)
from gateway.api.admin import Admin
from gateway.api.body import discard_body
from gateway.api.cache import Caches
from gateway.api.dialect import Dialect
from gateway.api.errors import ANTHROPIC, form_of
from gateway.api.events import Events
from gateway.api.exchange import Exchange
from gateway.api.logs import Logs
from gateway.api.media import Media
from gateway.api.models import Models
from gateway.api.operate import Operate
from gateway.api.requests import Requests
from gateway.api.responses_disk import Disk
from gateway.api.responses_routes import Responses
from gateway.api.sse import refuse, respond
from gateway.api.tokens import Tokens
from gateway.metrics import NO_MODEL, Metrics
from gateway.registry.schema import Right
from gateway.security import guard
from gateway.security.gate import Gate
from gateway.served import Live
from gateway.server import App, Receive, Scope, Send
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

log = logging.getLogger("gateway.requests")

CHAT = Dialect(
    route="/v1/chat/completions",
    decode=chat.decode,
    stream=chat_encode.ChunkEncoder,
    buffered=chat_encode.CompletionEncoder,
)
MESSAGES = Dialect(
    route="/v1/messages",
    decode=messages.decode,
    stream=messages_encode.EventEncoder,
    buffered=messages_encode.MessageEncoder,
    errors=ANTHROPIC,
)
COMPLETIONS = Dialect(
    route="/v1/completions",
    decode=completions.decode,
    stream=completions.TextChunkEncoder,
    buffered=completions.TextEncoder,
)
EMBEDDINGS = Dialect(
    route="/v1/embeddings",
    decode=embeddings.decode,
    buffered=embeddings.VectorsEncoder,
    kinds=("embedding",),
    large=True,
)
RERANK = tuple(
    Dialect(
        route=route,
        decode=rerank.decode,
        buffered=rerank.ScoresEncoder,
        kinds=("rerank",),
    )
    for route in rerank.ROUTES
)
SPEECH = Dialect(
    route="/v1/audio/speech",
    decode=speech.decode,
    stream=speech.SpeechEvents,
    kinds=("speech",),
    credited=True,
)
TRANSCRIPTIONS, TRANSLATIONS = (
    Dialect(
        route=f"/v1/audio/{name}",
        decode=decode,
        form=True,
        stream=transcriptions_encode.TranscriptEvents,
        buffered=transcriptions_encode.TranscriptEncoder,
        errors=transcriptions.ERRORS,
        kinds=("transcription",),
    )
    for name, decode in (
        ("transcriptions", transcriptions.transcription),
        ("translations", transcriptions.translation),
    )
)
GENERATING: tuple[Dialect[Any], ...] = (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    EMBEDDINGS,
    *RERANK,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
)

UNKNOWN_ROUTE = "(unknown)"
PROBES = frozenset({"/health", "/livez", "/readyz", "/metrics"})
WATCHING = frozenset({"/v1/status", "/v1/requests", "/", "/web/{name}"})
"""What the dashboard asks every few seconds, and is made of, would fill its own log."""


@dataclass(frozen=True, slots=True)
class Control:
    """The routes to look at the gateway and to operate it; where it keeps responses and images."""

    operate: Operate
    admin: Admin
    events: Events
    logs: Logs
    disk: Disk | None = None
    media: Media = field(default_factory=Media)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route asks of a key. `counted` requests are those that a rate limit is about."""

    right: Right | None = None
    counted: bool = False


ANY_KEY = Rule()
ASK = Rule("infer")
INFER = Rule("infer", counted=True)
MANAGE = Rule("manage")
ADMIN = Rule("admin")


def build(
    live: Live, supervisor: Supervisor, tasks: Tasks, metrics: Metrics, control: Control
) -> App:
    """The whole ASGI application."""
    models = Models(live, supervisor, int(time.time()))
    operate, admin, events = control.operate, control.admin, control.events
    gate, requests = Gate(lambda: live.now.server), Requests()
    media = control.media
    tokens, caches = Tokens(live, supervisor, media), Caches(live, supervisor)
    responses = Responses(live, supervisor, tasks, metrics, media, control.disk)
    routes = [
        *(
            _route(
                dialect.route,
                Exchange(dialect, live, supervisor, tasks, metrics, media),
                POST,
                INFER,
            )
            for dialect in GENERATING
        ),
        _route("/v1/responses", responses, POST, INFER),
        _actions("/v1/responses/{id}", ASK, GET=responses.one, DELETE=responses.delete),
        _actions("/v1/responses/{id}/cancel", ASK, POST=responses.cancel),
        _actions("/v1/responses/{id}/input_items", ASK, GET=responses.input_items),
        _route("/v1/messages/count_tokens", tokens.count, POST, ASK),
        _route("/tokenize", tokens.tokenize, POST, ASK),
        _route("/detokenize", tokens.detokenize, POST, ASK),
        _actions("/v1/cache/stats", ASK, GET=caches.stats),
        _actions("/v1/cache/prefix", MANAGE, DELETE=caches.clear_prefix),
        _actions("/v1/cache", MANAGE, DELETE=caches.clear),
        _route("/v1/requests", requests.index, GET),
        _actions("/v1/requests/{id}/cancel", POST=requests.cancel),
        _actions("/v1/requests/{id}", DELETE=requests.cancel),
        _route("/v1/audio/voices", speech.Voices(live, supervisor), GET),
        _route("/v1/models", models.index, GET),
        _actions("/v1/models/{model:path}/load", MANAGE, POST=admin.load),
        _actions("/v1/models/{model:path}/unload", MANAGE, POST=admin.unload),
        _actions("/v1/models/{model:path}/pin", MANAGE, PUT=admin.pin, DELETE=admin.unpin),
        _actions("/v1/models/{model:path}/events", GET=events.of_model),
        _route("/v1/models/{model:path}", models.one, GET),
        _route("/health", operate.health, GET),
        _route("/livez", operate.livez, GET),
        _route("/readyz", operate.readyz, GET),
        _route("/metrics", operate.metrics, GET),
        _route("/v1/status", operate.status, GET),
        _route("/openapi.json", openapi_document, GET),
        _route("/", web.page, GET),
        _route("/web/{name}", web.asset, GET),
        _actions("/admin/reload", ADMIN, POST=admin.reload),
        _route("/admin/explain", admin.explain, GET, ADMIN),
        _actions("/admin/events", ADMIN, GET=events.all),
        _actions("/admin/logs", ADMIN, GET=control.logs),
    ]
    return Application(Routes(routes, redirect_slashes=False), metrics, gate, requests)


GET, POST = ["GET"], ["POST"]


async def openapi_document(scope: Scope, receive: Receive, send: Send) -> None:
    from gateway.api import openapi  # few ask for it, and none at start

    await openapi.serve(scope, receive, send)


class _Endpoint:
    """An ASGI function as Starlette's `Route` takes it, which tells functions from applications."""

    def __init__(self, app: App, path: str, rule: Rule) -> None:
        self._app = app
        self._path = path
        self._rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        state["route"] = self._path
        state["demand"](self._rule)
        state["unread"] = False
        await self._app(scope, receive, send)


def _route(path: str, app: App, methods: list[str], rule: Rule = ANY_KEY) -> Route:
    return Route(path, _Endpoint(app, path, rule), methods=methods)


def _actions(path: str, rule: Rule = ANY_KEY, **by_method: App) -> Route:
    """A path that takes these methods alone, whatever else the routes after it would match."""
    allow = ", ".join(by_method)

    async def act(scope: Scope, receive: Receive, send: Send) -> None:
        app = by_method.get(scope["method"])
        if app is None:
            raise HTTPException(405, headers={"Allow": allow})
        await app(scope, receive, send)

    return Route(path, _Endpoint(act, path, rule), methods=None)


class Application:
    """Around every route: a request id, an answer for what a route raises, one log line, one count.

    Starlette's own middlewares do the same with three more calls for every event of a stream.
    """

    def __init__(self, routes: Routes, metrics: Metrics, gate: Gate, requests: Requests) -> None:
        self._routes = routes
        self._metrics = metrics
        self._gate = gate
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the server offers neither websockets nor a lifespan
        began = time.monotonic()
        request_id = self._requests.name(guard.header(scope, b"x-request-id"))
        state = scope["state"] = {
            "request_id": request_id,
            "route": UNKNOWN_ROUTE,
            "model": NO_MODEL,
            "error": "",
            "key": None,
            "unread": True,
        }
        scope["app"] = self  # has Starlette raise its 404 and 405 instead of answering them
        status = 0
        # OpenAI's and Anthropic's clients each look for it under their own name.
        added = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]

        async def observed_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        try:
            await self._serve(scope, receive, observed_send, added)
        except Exception as error:  # whatever a route raises has to be answered
            refusal = _refusal(scope, error)
            state["error"] = refusal.code
            if status:
                raise  # it has begun to answer: the server drops the connection
            form = form_of(scope)
            body = form.body(refusal, request_id)
            await refuse(
                observed_send, refusal, body, _linger(scope, receive), form.status(refusal)
            )
        finally:
            self._note(scope, state, status, time.monotonic() - began)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, added: guard.Headers
    ) -> None:
        """Past the gate and into the routes. `added` are the headers of every answer."""
        origin = self._gate.check_browser(scope)
        if origin is not None:
            added += guard.cors_headers(origin)
            if guard.is_preflight(scope):
                await respond(send, 204, b"", guard.preflight_headers(scope))
                return
        state = scope["state"]
        access = state["access"] = self._gate.admit(scope)
        state["key"] = access.name
        state["demand"] = lambda rule: self._gate.demand(access, rule.right, rule.counted)
        with self._requests.running(state):
            await self._routes(scope, receive, send)

    def _note(self, scope: Scope, state: dict[str, Any], status: int, seconds: float) -> None:
        route, model, error, key = state["route"], state["model"], state["error"], state["key"]
        outcome = error or (str(status) if status else errors.ClientGone.code)
        self._metrics.answered(route, model, outcome, seconds)
        quiet = route in PROBES | WATCHING and not error and status < 400
        log.log(
            logging.DEBUG if quiet else logging.INFO,
            "%s %s %s%s%s%s %.3f s %s",
            scope["method"],
            scope["path"][:200].encode("unicode_escape").decode(),
            status or 499,
            f" {error}" if error else "",
            f" model={model}" if model else "",
            f" key={key}" if key else "",
            seconds,
            state["request_id"],
            extra={"fields": _fields(scope, state, status, seconds)},
        )


def _fields(scope: Scope, state: dict[str, Any], status: int, seconds: float) -> dict[str, Any]:
    """What programs that read the log look for; what a request does not have is left out."""
    fields = {
        "request_id": state["request_id"],
        "method": scope["method"],
        "route": state["route"],
        "status": status or 499,
        "code": state["error"],
        "model": state["model"],
        "key": state["key"],
        "duration_s": round(seconds, 4),
        "ttft_s": state.get("ttft_s"),
    }
    finished: wire.Finished | None = state.get("finished")
    if finished is not None:
        fields |= msgspec.structs.asdict(finished.usage)
        times = msgspec.structs.asdict(finished.timings)
        fields |= {name: round(value, 4) for name, value in times.items()}
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _linger(scope: Scope, receive: Receive) -> Callable[[], Awaitable[None]] | None:
    """A client that is still sending would get a reset, and not why it was refused."""
    unread = scope["state"]["unread"] and scope["method"] in guard.WRITES
    return partial(discard_body, receive) if unread else None


def _refusal(scope: Scope, error: Exception) -> errors.GatewayError:
    """What a client is told of an error; one that nobody expected is logged with its traceback."""
    match error:
        case errors.GatewayError():
            return error
        case HTTPException(status_code=405):
            allowed = (error.headers or {}).get("Allow", "")
            return errors.MethodNotAllowed(
                f"{scope['path']} does not take {scope['method']}; use {allowed}", allow=allowed
            )
        case HTTPException(status_code=404):
            return errors.NotFound(f"there is nothing at {scope['path']}")
        case _:
            log.error("a request failed inside the gateway; this is a bug", exc_info=error)
            return errors.InternalError("the gateway failed while answering; its log says how")
