"""One client's call: a mailbox that the supervisor fills and one exchange empties.

The supervisor alone calls `push` and `fail`; the exchange alone awaits `batch`. Whatever happens to
a call, from waiting for room to the last token, arrives here in order, so an exchange is one loop
over one source and needs to race nothing.

The buffer is bounded in bytes, counting the overhead of each event and each log-probability.
Deltas that nobody has fetched are merged, so a slow reader of a long answer holds text and not
objects; past the bound the call fails with `ClientTooSlow`.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import cast

from engines import wire
from gateway.errors import ClientTooSlow, GatewayError
from gateway.residency import Phase

BUFFER_BYTES = 4 * 2**20
MERGE_BYTES = 64 * 2**10
EVENT_OVERHEAD_BYTES = 120


class Granted:
    """The call holds a lease and is with the engine."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The call is over, with what the client should be told."""

    error: GatewayError


class ClientLeft:
    """The client closed its connection."""


CallItem = (
    Phase
    | Granted
    | ClientLeft
    | CallFailed
    | wire.Started
    | wire.PromptProgress
    | wire.Output
    | wire.ChoiceFinished
    | wire.Finished
)


class Call:
    """A call from `Supervisor.open` until `over`.

    `model` is the registry name that serves it, `asked` the one that was asked for, `frame` the
    encoded request for its engine.
    """

    def __init__(self, call_id: int, model: str, frame: bytes, asked: str | None = None) -> None:
        self.id = call_id
        self.model = model
        self.asked = asked or model
        self.frame = frame
        self.over = False
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._loop.time()
        self._items: list[CallItem] = []
        self._bytes = 0
        self._merged_until = 0
        self._unmerged_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # --- the supervisor's side --------------------------------------------------------------

    def push(self, item: CallItem) -> None:
        """Adds an item; after the end, or once the client has left, it is dropped."""
        if self.over:
            return
        size = EVENT_OVERHEAD_BYTES
        if isinstance(item, _TEXTS):
            size += len(item.text)
            if type(item) is wire.TextDelta and item.logprobs is not None:
                size += EVENT_OVERHEAD_BYTES * sum(1 + len(token.top) for token in item.logprobs)
        elif type(item) is wire.Bytes:
            size += len(item.data)
        elif type(item) is wire.Segment:
            size += len(item.text) + 8 * len(item.tokens) + EVENT_OVERHEAD_BYTES * len(item.words)
        elif type(item) is wire.Finished:
            self.over = True
        self._items.append(item)
        self._bytes += size
        self._unmerged_bytes += size
        if self._unmerged_bytes > MERGE_BYTES:
            self._merge()
        if self._reader is not None:
            self._wake()

    def fail(self, error: GatewayError) -> None:
        self.push(CallFailed(error))
        self.over = True

    @property
    def overflowing(self) -> bool:
        return self._bytes > BUFFER_BYTES

    def abandon(self) -> None:
        """Nobody will read any more: drops what is buffered and what is still to come."""
        self.over = True
        self._items.clear()
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def overflow(self) -> None:
        """Replaces what is buffered by the failure, so a stalled client costs nothing further.

        After the end it does nothing: no more can come.
        """
        if self.over:
            return
        self._items.clear()
        self._bytes = self._unmerged_bytes = self._merged_until = 0
        self.fail(ClientTooSlow("the client does not read the answer"))

    def _merge(self) -> None:
        """Joins neighbouring deltas of one choice among the items added since the last time."""
        fresh = self._items[self._merged_until :]
        del self._items[self._merged_until :]
        for key, group in itertools.groupby(fresh, _merge_key):
            run = list(group)
            if key is None or len(run) == 1:
                self._items.extend(run)
                continue
            kind, choice = key
            text = "".join(cast(wire.TextDelta, delta).text for delta in run)
            self._items.append(kind(self.id, choice, text))
            self._bytes -= EVENT_OVERHEAD_BYTES * (len(run) - 1)
        self._merged_until = len(self._items)
        self._unmerged_bytes = 0

    # --- the exchange's side ----------------------------------------------------------------

    async def batch(self, deadline: float) -> list[CallItem]:
        """Every item at hand, in order, waiting for the first one until `deadline` (loop time).

        An empty list means that the deadline passed in silence.
        """
        if self._items:
            # Hypercorn's send neither suspends nor raises for a client that has gone, so a loop
            # that always finds more would starve everything else.
            await asyncio.sleep(0)
        else:
            await self._wait(deadline)
        return self.take()

    def take(self) -> list[CallItem]:
        """Every item at hand, in order, without waiting."""
        items, self._items = self._items, []
        self._bytes = self._unmerged_bytes = self._merged_until = 0
        return items

    def read_by(self, reader: asyncio.Future[None] | None) -> None:
        """Has the next item wake `reader`, for one who reads several calls; None ends that."""
        self._reader = reader

    async def _wait(self, deadline: float) -> None:
        self._deadline = deadline
        # One timer per silence, not per event: it is re-armed only when it fires too early.
        if self._timer is None or self._timer.when() > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._on_timer)
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._reader is None:
            return
        if self._loop.time() >= self._deadline:
            self._wake()
        else:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


_TEXTS = (wire.TextDelta, wire.ReasoningDelta, wire.ToolCallArguments)


def _merge_key(
    item: CallItem,
) -> tuple[type[wire.TextDelta] | type[wire.ReasoningDelta], int] | None:
    """Items with the same key may become one; None stays as it is."""
    if isinstance(item, wire.ReasoningDelta):
        return wire.ReasoningDelta, item.choice
    if isinstance(item, wire.TextDelta) and item.logprobs is None:
        return wire.TextDelta, item.choice
    return None
