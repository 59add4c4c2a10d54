"""The route table and what lies around every route: request id, log line, errors, metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.routing import Router as Routes

from gateway import errors
from gateway.api import chat, chat_encode, completions, messages, messages_encode
from gateway.api.admin import Admin
from gateway.api.dialect import Dialect
from gateway.api.errors import ANTHROPIC, form_of
from gateway.api.events import Events
from gateway.api.exchange import Exchange
from gateway.api.models import Models
from gateway.api.operate import Operate
from gateway.api.sse import refuse
from gateway.metrics import NO_MODEL, Metrics
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
GENERATING: tuple[Dialect[Any], ...] = (CHAT, COMPLETIONS, MESSAGES)

UNKNOWN_ROUTE = "(unknown)"
PROBES = frozenset({"/health", "/livez", "/readyz", "/metrics"})


@dataclass(frozen=True, slots=True)
class Control:
    """The routes to look at the gateway and to operate it."""

    operate: Operate
    admin: Admin
    events: Events


def build(
    live: Live, supervisor: Supervisor, tasks: Tasks, metrics: Metrics, control: Control
) -> App:
    """The whole ASGI application."""
    models = Models(live, supervisor, int(time.time()))
    operate, admin, events = control.operate, control.admin, control.events
    routes = [
        *(
            _route(dialect.route, Exchange(dialect, live, supervisor, tasks, metrics), POST)
            for dialect in GENERATING
        ),
        _route("/v1/models", models.index, GET),
        _actions("/v1/models/{model:path}/load", POST=admin.load),
        _actions("/v1/models/{model:path}/unload", POST=admin.unload),
        _actions("/v1/models/{model:path}/pin", PUT=admin.pin, DELETE=admin.unpin),
        _actions("/v1/models/{model:path}/events", GET=events.of_model),
        _route("/v1/models/{model:path}", models.one, GET),
        _route("/health", operate.health, GET),
        _route("/livez", operate.livez, GET),
        _route("/readyz", operate.readyz, GET),
        _route("/metrics", operate.metrics, GET),
        _route("/v1/status", operate.status, GET),
        _actions("/admin/reload", POST=admin.reload),
        _route("/admin/explain", admin.explain, GET),
        _actions("/admin/events", GET=events.all),
    ]
    return Application(Routes(routes, redirect_slashes=False), metrics)


GET, POST = ["GET"], ["POST"]


class _Endpoint:
    """An ASGI function as Starlette's `Route` takes it, which tells functions from applications."""

    def __init__(self, app: App, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["route"] = self._path
        await self._app(scope, receive, send)


def _route(path: str, app: App, methods: list[str]) -> Route:
    return Route(path, _Endpoint(app, path), methods=methods)


def _actions(path: str, **by_method: App) -> Route:
    """A path that takes these methods alone, whatever else the routes after it would match."""
    allow = ", ".join(by_method)

    async def act(scope: Scope, receive: Receive, send: Send) -> None:
        app = by_method.get(scope["method"])
        if app is None:
            raise HTTPException(405, headers={"Allow": allow})
        await app(scope, receive, send)

    return Route(path, _Endpoint(act, path), methods=None)


class Application:
    """Around every route: a request id, an answer for what a route raises, one log line, one count.

    Starlette's own middlewares do the same with three more calls for every event of a stream.
    """

    def __init__(self, routes: Routes, metrics: Metrics) -> None:
        self._routes = routes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the server offers neither websockets nor a lifespan
        began = time.monotonic()
        request_id = f"req_{uuid4().hex}"
        state = scope["state"] = {
            "request_id": request_id,
            "route": UNKNOWN_ROUTE,
            "model": NO_MODEL,
            "error": "",
        }
        scope["app"] = self  # has Starlette raise its 404 and 405 instead of answering them
        status = 0
        # OpenAI's and Anthropic's clients each look for it under their own name.
        ids = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]

        async def observed_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        try:
            await self._routes(scope, receive, observed_send)
        except Exception as error:  # whatever a route raises has to be answered
            refusal = _refusal(scope, error)
            state["error"] = refusal.code
            if status:
                raise  # it has begun to answer: the server drops the connection
            form = form_of(scope)
            body = form.body(refusal, request_id)
            await refuse(observed_send, refusal, body, status=form.status(refusal))
        finally:
            self._note(scope, state, status, time.monotonic() - began, request_id)

    def _note(
        self, scope: Scope, state: dict[str, str], status: int, seconds: float, request_id: str
    ) -> None:
        route, model, error = state["route"], state["model"], state["error"]
        outcome = error or str(status)
        self._metrics.requests.labels(route, model, outcome).inc()
        self._metrics.request_seconds.labels(route, model).observe(seconds)
        quiet = route in PROBES and not error
        log.log(
            logging.DEBUG if quiet else logging.INFO,
            "%s %s %s%s%s %.3f s %s",
            scope["method"],
            scope["path"][:200].encode("unicode_escape").decode(),
            status or 499,
            f" {error}" if error else "",
            f" model={model}" if model else "",
            seconds,
            request_id,
        )


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
