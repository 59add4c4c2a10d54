"""Responses that are kept, so that a later request can read, continue or delete them.

In memory, within a bound in bytes; a mirror hears of everything that changes. What has not been
used for the longest time goes first, and what has not been used for `ttl_s` goes in any case. A
response is known to the owner that made it and to nobody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.api.responses_items import Item
from gateway.errors import NotFound

MAX_TURNS = 4096
OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Log:
    """Frames of an event stream; `frames[0]` has the sequence number `first`."""

    first: int
    frames: tuple[bytes, ...]

    def after(self, number: int) -> tuple[bytes, ...] | None:
        """Every frame with a higher sequence number; None when some of them are gone."""
        return None if number + 1 < self.first else self.frames[number + 1 - self.first :]


@dataclass(frozen=True, slots=True)
class Stored:
    """`response` is the whole object and `items` the list of its own input items, both as JSON.

    `previous` is the response that it continues; `log` what a background response streamed.
    """

    id: str
    owner: str
    response: bytes
    items: bytes
    previous: str | None = None
    background: bool = False
    log: Log | None = None

    @property
    def size_bytes(self) -> int:
        log = sum(map(len, self.log.frames)) if self.log is not None else 0
        return len(self.response) + len(self.items) + log + OVERHEAD_BYTES

    def input_items(self) -> list[Item]:
        return _items.decode(self.items)

    def output_items(self) -> list[Item]:
        return _response.decode(self.response).output


class _Response(msgspec.Struct):
    output: list[Item]


_items = msgspec.json.Decoder(list[Item])
_response = msgspec.json.Decoder(_Response)


class Mirror(Protocol):
    """Where what is kept is written as well. Neither method may block."""

    def put(self, stored: Stored) -> None: ...

    def delete(self, response_id: str) -> None: ...


@dataclass(slots=True)
class _Kept:
    stored: Stored
    used: float
    item_ids: tuple[str, ...]


class MemoryStore:
    """The owner of every kept response. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        max_bytes: int,
        ttl_s: float,
        mirror: Mirror | None = None,
    ) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._mirror = mirror
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._places: dict[str, str] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, stored: Stored) -> None:
        """Keeps it; others make room. One that is larger than all the room is not kept."""
        self._expire()
        self._forget(stored.id)
        if stored.size_bytes > self._max_bytes:
            return
        if self._mirror is not None:
            self._mirror.put(stored)
        self._add(stored, self._clock())

    def restore(self, stored: Stored, age_s: float) -> None:
        """Takes over what a mirror had, unused for so long; the oldest has to come first."""
        self._add(stored, self._clock() - age_s)
        self._expire()

    def _add(self, stored: Stored, used: float) -> None:
        kept = self._kept[stored.id] = _Kept(stored, used, _ids(stored))
        self.size_bytes += stored.size_bytes
        self._places.update(dict.fromkeys(kept.item_ids, stored.id))
        while self.size_bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))

    def get(self, response_id: str, owner: str) -> Stored | None:
        """One that is kept for this owner; it counts as used now."""
        self._expire()
        kept = self._kept.get(response_id)
        if kept is None or kept.stored.owner != owner:
            return None
        kept.used = self._clock()
        self._kept.move_to_end(response_id)
        return kept.stored

    def delete(self, response_id: str, owner: str) -> bool:
        """Whether there was one to delete."""
        if self.get(response_id, owner) is None:
            return False
        self._forget(response_id)
        return True

    def item(self, item_id: str, owner: str) -> Item | None:
        """An item by its id, of the input or of the output of any response of this owner."""
        stored = self.get(self._places.get(item_id, ""), owner)
        if stored is None:
            return None
        items = [*stored.input_items(), *stored.output_items()]
        return next((item for item in items if item.id == item_id), None)

    def turns(self, response_id: str, owner: str) -> list[Item]:
        """Every item up to and including this response's, oldest first.

        Raises `NotFound` when the response, or one that it goes back to, is not kept.
        """
        chain: list[Stored] = []
        wanted: str | None = response_id
        while wanted is not None:
            stored = self.get(wanted, owner)
            if stored is None or len(chain) >= MAX_TURNS:
                raise _not_kept(response_id, wanted)
            chain.append(stored)
            wanted = stored.previous
        return [
            item
            for stored in reversed(chain)
            for item in (*stored.input_items(), *stored.output_items())
        ]

    def _expire(self) -> None:
        """The first one is always the one that was used least recently."""
        oldest = self._clock() - self._ttl_s
        while self._kept:
            response_id, kept = next(iter(self._kept.items()))
            if kept.used > oldest:
                return
            self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        kept = self._kept.pop(response_id, None)
        if kept is None:
            return
        self.size_bytes -= kept.stored.size_bytes
        if self._mirror is not None:
            self._mirror.delete(response_id)
        for item_id in kept.item_ids:
            if self._places.get(item_id) == response_id:
                del self._places[item_id]


def _ids(stored: Stored) -> tuple[str, ...]:
    items = (*stored.input_items(), *stored.output_items())
    return tuple(item.id for item in items if item.id is not None)


def _not_kept(response_id: str, missing: str) -> NotFound:
    back = "" if missing == response_id else f", which {response_id[:100]!r} goes back to,"
    return NotFound(
        f"response {missing[:100]!r}{back} is not kept here; send the whole conversation",
        param="previous_response_id",
    )
