"""What happens to the models, as it happens: one bus, and the routes that stream from it.

The journal alone publishes; a subscriber that does not keep up loses the oldest events, is told
how many, and costs nobody else anything. Every queue is bounded in events and in bytes, and so is
the number of subscribers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import msgspec

from gateway.api.sse import COMMENT, EventStream, WatchedSend, watch_disconnect
from gateway.api.views import state_of
from gateway.errors import Unavailable
from gateway.registry.schema import Server
from gateway.router import served_by
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

QUEUE_EVENTS = 512
QUEUE_BYTES = 256 * 2**10
MAX_SUBSCRIBERS = 64
RETRY_S = 10.0
LOOK_AGAIN_S = 60.0
"""Without heartbeats, each single wait for an event is bounded by this."""


class Subscription:
    """One reader's queue of frames. `over` says that nothing follows what is queued.

    `model` None stands for every model. Without `reloads` it is told nothing of the registry.
    """

    def __init__(self, model: str | None, reloads: bool = True) -> None:
        self.model = model
        self.reloads = reloads
        self.over = False
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._missed = 0
        self._wake = asyncio.Event()

    def put(self, frame: bytes) -> None:
        """Queues a frame; the oldest ones make room for it."""
        if self.over:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        while len(self._frames) > QUEUE_EVENTS or self._bytes > QUEUE_BYTES:
            self._bytes -= len(self._frames.popleft())
            self._missed += 1
        self._wake.set()

    def end(self) -> None:
        self.over = True
        self._wake.set()

    async def batch(self, seconds: float) -> list[bytes]:
        """Every frame at hand, waiting for the first one for so long; empty after silence.

        What was lost since the last batch comes first, as an event.
        """
        if not self._frames and not self.over:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return []
        self._wake.clear()
        frames = list(self._frames)
        self._frames.clear()
        self._bytes = 0
        if self._missed:
            frames.insert(0, frame_of("missed", {"count": self._missed}))
            self._missed = 0
        return frames


class EventBus:
    """Hands each event to everyone it concerns, at once and without waiting for anybody."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._subscriptions)

    def publish(self, type_: str, model: str | None = None, **fields: Any) -> None:
        """Events without a model concern the whole gateway; every subscriber gets them."""
        if not self._subscriptions:
            return
        named = {"model": model} if model is not None else {}
        frame = frame_of(type_, {**named, **fields})
        for subscription in self._subscriptions:
            concerned = model is None or subscription.model in (None, model)
            if concerned and (subscription.reloads or type_ != "reload"):
                subscription.put(frame)

    def subscribe(self, model: str | None = None, reloads: bool = True) -> Subscription:
        """Everything from now on. Raises `Unavailable` when too many listen already."""
        if len(self._subscriptions) >= MAX_SUBSCRIBERS:
            raise Unavailable(
                f"{MAX_SUBSCRIBERS} clients follow events already, and no more may; close one",
                retry_after_s=RETRY_S,
            )
        subscription = Subscription(model, reloads)
        if self._closed:
            subscription.end()
        else:
            self._subscriptions.add(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """The reader has gone; leaving twice does nothing."""
        self._subscriptions.discard(subscription)
        subscription.end()

    def end_model(self, model: str) -> None:
        """Nothing more will happen to this model: its own streams end with what is queued."""
        for subscription in [s for s in self._subscriptions if s.model == model]:
            self.leave(subscription)

    def close(self) -> None:
        """Every stream ends with what is queued, and so does every later one."""
        self._closed = True
        for subscription in list(self._subscriptions):
            self.leave(subscription)


def frame_of(type_: str, fields: dict[str, Any]) -> bytes:
    """One event of a stream; `at` is in seconds since 1970."""
    event = {"at": round(time.time(), 3), "type": type_, **fields}
    return b"data: %s\n\n" % msgspec.json.encode(event)


class Events:
    """`GET /admin/events` and `/v1/models/{id}/events`, as ASGI applications."""

    def __init__(self, live: Live, supervisor: Supervisor, tasks: Tasks, bus: EventBus) -> None:
        self._live = live
        self._supervisor = supervisor
        self._tasks = tasks
        self._bus = bus

    async def all(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._follow(None, scope, receive, send)

    async def of_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A variant's events are those of its base, which alone can load and leave."""
        router = access_of(scope).router(self._live.now.router)
        model = router.find(scope["path_params"]["model"])
        scope["state"]["model"] = model.entry.name
        await self._follow(served_by(model), scope, receive, send)

    async def _follow(self, model: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        subscription = self._bus.subscribe(model, access_of(scope).may_read_reloads)
        try:
            beginning, server = self._snapshot(model), self._live.now.server
            await follow(subscription, beginning, (scope, receive, send), self._tasks, server)
        finally:
            self._bus.leave(subscription)

    def _snapshot(self, model: str | None) -> bytes:
        """Where everything stands as the stream begins; nothing between it and what follows."""
        views = self._supervisor.snapshot().models
        states = [state_of(view) for view in views if model in (None, view.name)]
        return frame_of("snapshot", {"draining": self._supervisor.draining, "models": states})


async def follow(
    subscription: Subscription,
    beginning: bytes,
    connection: tuple[Scope, Receive, Send],
    tasks: Tasks,
    server: Server,
) -> None:
    """Streams `beginning` and every frame of the subscription, until it or the client ends it."""
    scope, receive, send = connection
    left = asyncio.Event()

    def on_left() -> None:
        left.set()
        subscription.end()

    watcher = tasks.supervised(
        "disconnect of an event stream",
        watch_disconnect(receive, on_left),
        lambda _: on_left(),
    )
    try:
        with WatchedSend(scope, send, server.write_stall_s, on_left) as out:
            stream = EventStream(out)
            await stream.write(beginning or COMMENT)
            await _pump(subscription, stream, server.heartbeat_s)
            if not left.is_set():
                await stream.end()
    finally:
        watcher.cancel()


async def _pump(subscription: Subscription, stream: EventStream, heartbeat_s: float) -> None:
    """Until the subscription is over and everything queued has gone out."""
    over = False
    while not over:
        over = subscription.over  # read before the batch, which then holds all that is left
        frames = await subscription.batch(heartbeat_s or LOOK_AGAIN_S)
        if frames:
            await stream.write(b"".join(frames))
        elif heartbeat_s and not over:
            await stream.write(COMMENT)
