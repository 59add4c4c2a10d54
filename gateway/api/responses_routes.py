"""The routes of `/v1/responses`: asking, and what can be done with a response afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.api import responses
from gateway.api.body import read_body
from gateway.api.dialect import Dialect
from gateway.api.exchange import Asked, Exchange
from gateway.api.media import Media
from gateway.api.query import flag, number, query_of
from gateway.api.responses_disk import Disk
from gateway.api.responses_encode import EventEncoder, Json, ResponseEncoder, ResponsesDecoded
from gateway.api.responses_items import Item
from gateway.api.responses_runs import Run, Runs
from gateway.api.responses_store import MemoryStore, Stored
from gateway.api.sse import EventStream, WatchedSend, respond, watch_disconnect
from gateway.errors import InvalidRequest, NotFound
from gateway.metrics import Metrics
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

ROUTE = "/v1/responses"

BODY_BYTES = 64 * 2**10
LOOK_AGAIN_S = 60.0
PAGE_ITEMS, MAX_PAGE_ITEMS = 20, 100


@dataclass(frozen=True, slots=True)
class _History:
    """What one owner can refer to."""

    owner: str
    store: MemoryStore
    runs: Runs

    def item(self, item_id: str) -> Item | None:
        return self.store.item(item_id, self.owner)

    def turns(self, response_id: str) -> list[Item]:
        if self.runs.get(response_id, self.owner) is not None:
            raise InvalidRequest(
                f"response {response_id!r} is not over yet; wait for it, or cancel it",
                param="previous_response_id",
            )
        return self.store.turns(response_id, self.owner)


class Responses(Exchange[ResponsesDecoded]):
    """`POST /v1/responses` is the exchange itself; the other routes are methods.

    Owns the store, and the runs in the background.
    """

    def __init__(
        self,
        live: Live,
        supervisor: Supervisor,
        tasks: Tasks,
        metrics: Metrics,
        media: Media,
        disk: Disk | None = None,
    ) -> None:
        server = live.now.server
        self._store = MemoryStore(
            time.monotonic, server.responses_mb * 2**20, server.responses_ttl_s, disk
        )
        if disk is not None:
            for stored, age_s in disk.open():
                self._store.restore(stored, age_s)
        self._runs = Runs(tasks, self._over)
        dialect = Dialect(
            route=ROUTE,
            decode=lambda body: responses.decode(body, self._history("")),
            stream=lambda decoded: EventEncoder(decoded, self._keep),
            buffered=lambda decoded: ResponseEncoder(decoded, self._keep),
        )
        super().__init__(dialect, live, supervisor, tasks, metrics, media)

    # --- asking -------------------------------------------------------------------------------

    def _decode(self, body: bytes, scope: Scope) -> ResponsesDecoded:
        decoded = responses.decode(body, self._history(_owner(scope)))
        if decoded.background:
            self._runs.check_room()
        return decoded

    def _history(self, owner: str) -> _History:
        return _History(owner, self._store, self._runs)

    async def _serve(
        self, asked: Asked[ResponsesDecoded], scope: Scope, receive: Receive, send: Send
    ) -> None:
        if not asked.decoded.background:
            await super()._serve(asked, scope, receive, send)
            return
        run = self._start(asked)
        if asked.decoded.stream:
            await self._follow(run, -1, scope, receive, send)
        else:
            await respond(send, 200, msgspec.json.encode(run.response()))

    def _start(self, asked: Asked[ResponsesDecoded]) -> Run:
        with contextlib.ExitStack() as held:
            calls = self._open(asked, held)
            # What becomes of it concerns no request any more, so there is none to note it.
            answer = self._answer(asked, calls, {"state": {}})
            return self._runs.start(asked.decoded, answer, held.pop_all())

    def _keep(self, decoded: ResponsesDecoded, response: Json) -> None:
        if decoded.store:
            self._store.put(_stored(decoded, response))

    def _over(self, run: Run) -> None:
        stored = _stored(run.decoded, run.response())
        log = run.log() if run.decoded.stream else None
        self._store.put(dataclasses.replace(stored, log=log))

    # --- afterwards ---------------------------------------------------------------------------

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response as it is now; with `?stream=true` its events, after `starting_after`."""
        query = query_of(scope)
        after = number(query, "starting_after", -1, 0, 2**53)
        if not flag(query, "stream"):
            if "starting_after" in query:
                raise InvalidRequest("starting_after: needs stream=true", param="starting_after")
            found = self._found(scope)
            body = (
                msgspec.json.encode(found.response()) if isinstance(found, Run) else found.response
            )
            await respond(send, 200, body)
            return
        found = self._found(scope)
        if isinstance(found, Run) and found.decoded.stream:
            await self._follow(found, after, scope, receive, send)
        else:
            await self._replay(found, after, scope, send)

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forgets it; one that still runs is cancelled first."""
        await read_body(scope, receive, BODY_BYTES)
        found = self._found(scope)
        if isinstance(found, Run):
            self._runs.cancel(found)
        response_id = scope["path_params"]["id"]
        self._store.delete(response_id, _owner(scope))
        body = {"id": response_id, "object": "response", "deleted": True}
        await respond(send, 200, msgspec.json.encode(body))

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends one in the background; what is over stays as it is."""
        await read_body(scope, receive, BODY_BYTES)
        found = self._found(scope)
        if isinstance(found, Run):
            self._runs.cancel(found)
            await respond(send, 200, msgspec.json.encode(found.response()))
            return
        if not found.background:
            raise InvalidRequest(
                "only a response that was made with background: true can be cancelled; to end "
                "any other, close its connection"
            )
        await respond(send, 200, found.response)

    async def input_items(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A page of the input, the last item first unless `order=asc`."""
        query = query_of(scope)
        limit = number(query, "limit", PAGE_ITEMS, 1, MAX_PAGE_ITEMS)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest(f"order: asc or desc, not {order[:50]!r}", param="order")
        found = self._found(scope)
        items: list[Json] = msgspec.json.decode(
            found.decoded.items if isinstance(found, Run) else found.items
        )
        if order == "desc":
            items.reverse()
        await respond(send, 200, msgspec.json.encode(_page(items, query.get("after"), limit)))

    # --- shared -------------------------------------------------------------------------------

    def _found(self, scope: Scope) -> Run | Stored:
        """Raises `NotFound` for one that is not kept, or not for this owner."""
        response_id, owner = scope["path_params"]["id"], _owner(scope)
        found = self._runs.get(response_id, owner) or self._store.get(response_id, owner)
        if found is None:
            raise NotFound(
                f"there is no response {response_id[:100]!r} here: it was never stored, or it is "
                "no longer kept"
            )
        return found

    async def _follow(
        self, run: Run, after: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        _check_after(after, run.first)
        reader = run.join(after)
        watcher = self._tasks.supervised(
            f"disconnect from response {run.decoded.id}",
            watch_disconnect(receive, reader.leave),
            lambda _: reader.leave(),
        )
        stall_s = self._live.now.server.write_stall_s
        try:
            with WatchedSend(scope, send, stall_s, reader.leave) as out:
                stream, over = EventStream(out), False
                while not over:
                    frames, over = await reader.batch(LOOK_AGAIN_S)
                    if frames:
                        await stream.write(b"".join(frames))
                if not reader.left:
                    await stream.end()
        finally:
            reader.leave()
            watcher.cancel()

    async def _replay(self, found: Run | Stored, after: int, scope: Scope, send: Send) -> None:
        """The whole stream of one that is over."""
        log = found.log if isinstance(found, Stored) else None
        if log is None:
            raise InvalidRequest(
                "only a response that was made with background: true and stream: true can be "
                "streamed again; fetch it without stream",
                param="stream",
            )
        _check_after(after, log.first)
        stall_s = self._live.now.server.write_stall_s
        with WatchedSend(scope, send, stall_s, lambda: None) as out:
            stream = EventStream(out)
            await stream.write(b"".join(log.after(after) or ()))
            await stream.end()


def _owner(scope: Scope) -> str:
    """Responses belong to the key that made them; without keys they are everybody's."""
    return access_of(scope).name or ""


def _stored(decoded: ResponsesDecoded, response: Json) -> Stored:
    return Stored(
        id=decoded.id,
        owner=decoded.owner,
        response=msgspec.json.encode(response),
        items=decoded.items,
        previous=decoded.previous,
        background=decoded.background,
    )


def _check_after(after: int, first: int) -> None:
    if after + 1 < first:
        raise InvalidRequest(
            f"starting_after: the first event that is still kept is number {first}",
            param="starting_after",
        )


def _page(items: Sequence[Json], after: str | None, limit: int) -> dict[str, Any]:
    start = 0
    if after is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequest(f"after: there is no item {after[:100]!r}", param="after")
        start = places[0] + 1
    page = items[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(items),
    }
