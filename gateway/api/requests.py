"""`GET /v1/requests`, and ending one from outside: `POST .../{id}/cancel`, `DELETE .../{id}`.

Owns the map of requests in progress: an entry is there while its connection is served, so there
are never more of them than connections. A request is found by its `x-request-id` and by the id of
its answer, which share all but a prefix.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import msgspec

from gateway.api.body import read_body
from gateway.api.sse import respond
from gateway.errors import Cancelled, GatewayError, NotFound
from gateway.security.keys import Access, access_of
from gateway.server import Receive, Scope, Send

BODY_BYTES = 64 * 2**10

PREFIX = "req_"

_SAFE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PREFIXED = re.compile(r"[a-z]+[-_](?P<serial>.+)")

Cancel = Callable[[GatewayError], None]
State = dict[str, Any]


class Requests:
    """The requests in progress, their ids, and the routes that end one, as ASGI applications."""

    def __init__(self) -> None:
        self._running: dict[str, State] = {}

    def __len__(self) -> int:
        return len(self._running)

    def name(self, asked: str | None) -> str:
        """The id of a new request: what its client asks for, where that is safe and not taken."""
        if asked is not None and _SAFE.fullmatch(asked) and _serial(asked) not in self._running:
            return asked
        return f"{PREFIX}{uuid4().hex}"

    @contextlib.contextmanager
    def running(self, state: State) -> Iterator[None]:
        """Lists a request, by its state, for as long as it is served."""
        serial = _serial(state["request_id"])
        state["since"] = time.time()
        self._running[serial] = state
        try:
            yield
        finally:
            del self._running[serial]

    async def index(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Those that the sender may end, oldest first."""
        access = access_of(scope)
        listed = [
            _line(state)
            for state in self._running.values()
            if state.get("cancel") is not None and _may_cancel(access, state)
        ]
        await respond(send, 200, msgspec.json.encode({"object": "list", "data": listed}))

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 when it was told to end; 404 for one that is over, or another key's."""
        await read_body(scope, receive, BODY_BYTES)
        asked = scope["path_params"]["id"]
        state = self.find(asked)
        cancel = state.get("cancel") if state else None
        if state is None or cancel is None or not _may_cancel(access_of(scope), state):
            raise NotFound(f"there is no request {asked[:100]!r} in progress that this key may end")
        cancel(Cancelled("the request was cancelled"))
        body = {"id": asked, "object": "request", "status": "cancelled"}
        await respond(send, 200, msgspec.json.encode(body))

    def find(self, asked: str) -> State | None:
        """By the id of a request, or that of its answer, which has a prefix of its dialect."""
        state = self._running.get(_serial(asked))
        if state is None and (prefixed := _PREFIXED.match(asked)):
            state = self._running.get(prefixed["serial"])
        return state


def cancellable(scope: Scope, cancel: Cancel | None) -> None:
    """Tells how the request of this scope is ended; what it is given is what its client is told.

    None: it cannot be, at the moment.
    """
    scope["state"]["cancel"] = cancel


def serial_of(scope: Scope) -> str:
    """What the ids of this request and of its answer have in common."""
    return _serial(scope["state"]["request_id"])


def _serial(id_: str) -> str:
    return id_.removeprefix(PREFIX)


def _line(state: State) -> dict[str, Any]:
    """`since` is seconds since 1970; `ttft_s` how long its first token took, None before it."""
    return {
        "id": state["request_id"],
        "route": state["route"],
        "model": state["model"],
        "key": state["key"],
        "since": round(state["since"], 3),
        "ttft_s": state.get("ttft_s"),
    }


def _may_cancel(access: Access, state: State) -> bool:
    own = state["key"] == access.name and "infer" in access.rights
    return own or "manage" in access.rights
