"""`GET /admin/logs`: the last lines of the gateway and its engines, and those that follow."""

from __future__ import annotations

import msgspec

from gateway.api.events import MAX_SUBSCRIBERS, RETRY_S, Subscription, follow
from gateway.api.query import Query, flag, number, query_of
from gateway.api.sse import respond
from gateway.errors import InvalidRequest, Unavailable
from gateway.logs.lines import LEVELS, Line
from gateway.logs.ring import LogBook, Wanted, shown
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.tasks import Tasks

MAX_LINES = 10_000
LINES = 200


class Logs:
    """The route, as an ASGI application."""

    def __init__(self, live: Live, tasks: Tasks, book: LogBook) -> None:
        self._live = live
        self._tasks = tasks
        self._book = book
        self._streams: set[Subscription] = set()
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = query_of(scope)
        wanted = self._wanted(scope, query)
        lines = shown(self._book.tail(wanted, number(query, "lines", LINES, 0, MAX_LINES)))
        if not flag(query, "follow"):
            await respond(send, 200, msgspec.json.encode({"lines": lines}))
            return
        if len(self._streams) >= MAX_SUBSCRIBERS:
            raise Unavailable(
                f"{MAX_SUBSCRIBERS} clients follow the log already, and no more may; close one",
                retry_after_s=RETRY_S,
            )
        subscription = Subscription(None)
        if self._closed:
            subscription.end()
        stop = self._book.follow(wanted, lambda line: subscription.put(_frame(line)))
        self._streams.add(subscription)
        try:
            beginning = b"".join(map(_frame, lines))
            server = self._live.now.server
            await follow(subscription, beginning, (scope, receive, send), self._tasks, server)
        finally:
            stop()
            self._streams.discard(subscription)

    def close(self) -> None:
        """Streams end with what is queued, and so does every later one."""
        self._closed = True
        for subscription in self._streams:
            subscription.end()

    def _wanted(self, scope: Scope, query: Query) -> Wanted:
        level = query.get("level", "debug").upper()
        if level not in LEVELS:
            raise InvalidRequest("level: debug, info, warning or error", param="level")
        name = query.get("model")
        if name is not None:
            name = access_of(scope).router(self._live.now.router).find(name).entry.name
        return Wanted(name, LEVELS[level])


def _frame(line: Line) -> bytes:
    (told,) = shown([line])
    return b"data: %s\n\n" % msgspec.json.encode(told)
