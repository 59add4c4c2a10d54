"""The routes that operate the gateway: load, unload, pin, reload, explain.

Each asks the supervisor or the reloader and shows the state that came of it. A variant acts on its
base, which is what is loaded, evicted and pinned.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Protocol
from urllib.parse import quote

import msgspec

from gateway.api.body import read_body
from gateway.api.decode import BodyDecoder
from gateway.api.errors import JSON, openai_error
from gateway.api.events import EventBus, Subscription
from gateway.api.explain import body_of
from gateway.api.query import flag, query_of
from gateway.api.sse import refuse, respond, watch_disconnect
from gateway.api.views import state_of, view_of
from gateway.errors import (
    ClientGone,
    Draining,
    InvalidRequest,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    NoCapacity,
)
from gateway.residency import ModelView, State
from gateway.router import served_by
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

BODY_BYTES = 64 * 2**10
LONGEST_PIN_S = 10 * 365 * 86400
DRAIN_RETRY_S = 5.0
WAIT_RETRY_S = 5.0
LOOK_AGAIN_S = 60.0


class Outcome(Protocol):
    """How a reload went."""

    @property
    def result(self) -> str: ...

    def to_builtins(self) -> dict[str, Any]: ...


class Reload(Protocol):
    """What reloads the registry."""

    async def reload(self, cause: str) -> Outcome: ...


class Pin(msgspec.Struct, frozen=True):
    """How long; neither means for good."""

    expires_in_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_PIN_S)] | None = None
    until: Annotated[float, msgspec.Meta(gt=0, le=1e11)] | None = None


PIN = BodyDecoder(Pin)


class Admin:
    """The routes, as ASGI applications."""

    def __init__(
        self, live: Live, supervisor: Supervisor, reloader: Reload, tasks: Tasks, bus: EventBus
    ) -> None:
        self._live = live
        self._supervisor = supervisor
        self._reloader = reloader
        self._tasks = tasks
        self._bus = bus

    # --- one model ----------------------------------------------------------------------------

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 when it is ready, 202 while it is not; with `?wait=true` only its end is told."""
        name = self._named(scope)
        wait = flag(query_of(scope), "wait")
        await read_body(scope, receive, BODY_BYTES)
        self._refuse_while_draining()
        self._refuse_what_is_gone(name)
        if not wait:
            self._supervisor.load(name)
            view = self._accepted(name)
        else:
            view = await self._load_and_wait(name, receive)
        await self._show(scope, send, 200 if view.state is State.READY else 202, view)

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """202 while it leaves, 200 when there is nothing to unload."""
        name = self._named(scope)
        await read_body(scope, receive, BODY_BYTES)
        self._refuse_what_is_gone(name)
        self._supervisor.unload(name)
        view = view_of(self._supervisor, name)
        leaving = view.state in (State.DRAINING, State.UNLOADING)
        await self._show(scope, send, 202 if leaving else 200, view)

    async def pin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Keeps it, once it is loaded; it is not loaded for it. Replaces the pin before."""
        name = self._named(scope)
        seconds = _pin_seconds(await read_body(scope, receive, BODY_BYTES))
        self._refuse_what_is_gone(name)
        self._supervisor.pin(name, seconds)
        await self._show(scope, send, 200, view_of(self._supervisor, name))

    async def unpin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends what `pin` began; a pin in the registry stays, and the answer shows it."""
        name = self._named(scope)
        await read_body(scope, receive, BODY_BYTES)
        self._refuse_what_is_gone(name)
        self._supervisor.unpin(name)
        await self._show(scope, send, 200, view_of(self._supervisor, name))

    # --- the whole gateway --------------------------------------------------------------------

    async def reload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 with what differed, 400 with every problem of the file, and nothing changed."""
        await read_body(scope, receive, BODY_BYTES)
        self._refuse_while_draining()
        outcome = await self._reloader.reload("POST /admin/reload")
        body = outcome.to_builtins()
        if outcome.result != "refused":
            await respond(send, 200, msgspec.json.encode(body))
            return
        errors = [problem for problem in body["problems"] if problem["level"] == "error"]
        error = InvalidRequest(
            f"the registry was refused and nothing has changed: {_first(errors)}"
        )
        scope["state"]["error"] = error.code
        await refuse(send, error, msgspec.json.encode({"error": openai_error(error), **body}))

    async def explain(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = query_of(scope).get("model")
        if not asked:
            raise InvalidRequest("name a model, as in /admin/explain?model=NAME", param="model")
        model = access_of(scope).router(self._live.now.router).find(asked)
        scope["state"]["model"] = model.entry.name
        explanation = self._supervisor.explain(served_by(model))
        await respond(send, 200, msgspec.json.encode(body_of(explanation)))

    # --- shared -------------------------------------------------------------------------------

    def _named(self, scope: Scope) -> str:
        """The registry name of what is loaded for the model in the path."""
        router = access_of(scope).router(self._live.now.router)
        model = router.find(scope["path_params"]["model"])
        scope["state"]["model"] = model.entry.name
        return served_by(model)

    def _refuse_while_draining(self) -> None:
        if self._supervisor.draining:
            raise Draining("the gateway is shutting down", retry_after_s=DRAIN_RETRY_S)

    def _refuse_what_is_gone(self, name: str) -> None:
        """A reload may have removed the model since its name was looked up."""
        if all(model.entry.name != name for model in self._live.now.router.models):
            raise ModelNotFound(f"model {name!r} has just been removed from the registry")

    async def _show(self, scope: Scope, send: Send, status: int, view: ModelView) -> None:
        asked = scope["path_params"]["model"]
        events = f"/v1/models/{quote(asked)}/events"
        body = {"id": asked, **state_of(view), "events": events}
        headers = [JSON, (b"location", events.encode())] if status == 202 else None
        await respond(send, status, msgspec.json.encode(body), headers)

    # --- loading ------------------------------------------------------------------------------

    def _accepted(self, name: str) -> ModelView:
        """The state after a load was asked for. Raises why it will not be loaded."""
        view = view_of(self._supervisor, name)
        if view.state in (State.READY, State.LOADING) or view.wished:
            return view
        refusal = self._supervisor.refusal_for(name)
        if refusal is not None:
            raise refusal.error()
        match view.state:
            case State.FAILED:
                raise LoadFailed(f"model {name!r} has failed: {view.reason}")
            case State.UNAVAILABLE:
                raise ModelUnavailable(f"model {name!r} is unavailable: {view.reason}")
            case _:
                why = view.reason or f"model {name!r} is {view.state}: its load was given up"
                raise NoCapacity(why, retry_after_s=WAIT_RETRY_S)

    async def _load_and_wait(self, name: str, receive: Receive) -> ModelView:
        """Raises what ended the load, and `ClientGone`; the load goes on without the client."""
        subscription = self._bus.subscribe(name)
        watcher = self._tasks.supervised(
            f"disconnect while {name} loads",
            watch_disconnect(receive, lambda: self._bus.leave(subscription)),
            lambda _: self._bus.leave(subscription),
        )
        try:
            self._supervisor.load(name)
            return await self._outcome(name, subscription)
        finally:
            self._bus.leave(subscription)
            watcher.cancel()

    async def _outcome(self, name: str, subscription: Subscription) -> ModelView:
        while True:
            self._refuse_what_is_gone(name)
            view = self._accepted(name)
            if view.state is State.READY:
                return view
            if subscription.over:
                self._refuse_while_draining()
                raise ClientGone("the client left while it waited for a load")
            await subscription.batch(LOOK_AGAIN_S)


def _pin_seconds(body: bytes) -> float | None:
    """How long from now; None for good. Raises `InvalidRequest`."""
    if not body.strip():
        return None
    asked = PIN.decode(body)
    if asked.until is None:
        return asked.expires_in_s
    if asked.expires_in_s is not None:
        raise InvalidRequest("give expires_in_s or until, not both", param="until")
    seconds = asked.until - time.time()
    if not 0 < seconds <= LONGEST_PIN_S:
        raise InvalidRequest("until has to lie in the future, in seconds since 1970", param="until")
    return seconds


def _first(problems: list[dict[str, Any]]) -> str:
    """The first problem in words, and how many more there are."""
    first = problems[0]
    place = f"{first['file']}:{first['line']}: " if first["line"] else ""
    key = f"{first['key']}: " if first["key"] else ""
    more = f" (and {len(problems) - 1} more, see problems)" if len(problems) > 1 else ""
    return f"{place}{key}{first['message']}{more}"
