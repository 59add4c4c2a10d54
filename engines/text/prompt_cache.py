"""Key-value caches of earlier sequences, kept for prompts that begin the same way.

The work thread owns it. Invariants: the entries together stay within the byte limit; an entry is
never handed out itself, only a copy that shares its (immutable) buffers; at least one token of a
prompt is always left to feed, as a model needs one to give logits.

Entries are few and large, so they are searched in turn, each by bisection over its packed tokens:
32k tokens cost some tens of microseconds. A tree of tokens would cost a Python dictionary for each.

A layer is anything with `nbytes`, `is_trimmable()` and `trim(n)`, as in `mlx_lm.models.cache`.
"""

from __future__ import annotations

import copy
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from engines import wire

MIN_REUSED_TOKENS = 8
"""A shorter common beginning is the template's first words, not worth a copy."""

Layers = list[Any]

_ITEM = array("I").itemsize


@dataclass(slots=True)
class Entry:
    """Layers that hold exactly the tokens packed in `key`; `used_at` is of the monotonic clock.

    `saved` says that nothing is to be done for it to outlast the process.
    """

    key: bytes
    layers: Layers
    nbytes: int
    used_at: float
    hits: int = 0
    saved: bool = False

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.key) // _ITEM


class PromptCache:
    """Least recently used first out. `limit` and all sizes are bytes.

    `evaluate` makes the arrays of some layers real; it is called before they are kept, because an
    array still to be computed holds the whole batch it came from in memory. `evicted` is told of
    each entry that has left for lack of room.
    """

    def __init__(
        self,
        limit: int,
        evaluate: Callable[[Layers], None],
        evicted: Callable[[Entry], None] = lambda entry: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limit = limit
        self._evaluate = evaluate
        self._evicted = evicted
        self._clock = clock
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._nbytes = 0
        self._hits = 0
        self._misses = 0
        self._saved = 0
        self._evictions = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def limit(self) -> int:
        return self._limit

    def __iter__(self) -> Iterator[Entry]:
        """Entries, the least recently used first."""
        return iter(self._entries.values())

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def stats(self) -> wire.PromptCacheStats:
        return wire.PromptCacheStats(
            entries=len(self._entries),
            hits=self._hits,
            misses=self._misses,
            tokens_saved=self._saved,
            evictions=self._evictions,
        )

    def set_limit(self, limit: int) -> None:
        """Shrinks to the new limit at once."""
        self._limit = limit
        self.make_room(0)

    def make_room(self, nbytes: int) -> None:
        """Evicts until so much can be added; all there is when it can never be."""
        while self._entries and self._nbytes + nbytes > self._limit:
            entry = self._drop(next(iter(self._entries)))
            self._evictions += 1
            self._evicted(entry)

    def clear(self, matches: Callable[[bytes], bool] = lambda key: True) -> tuple[int, int]:
        """Drops entries whose packed tokens match; how many those were, and their bytes."""
        keys = [key for key in self._entries if matches(key)]
        return len(keys), sum(self._drop(key).nbytes for key in keys)

    def usable(self, prompt: Sequence[int]) -> int:
        """How many tokens of `prompt` the best entry stands for; nothing counts as a use."""
        return self._best(pack(prompt))[1]

    def fetch(self, prompt: Sequence[int], *, counted: bool = True) -> tuple[Layers | None, int]:
        """Layers that hold the first n tokens of `prompt`, and n; (None, 0) when none do."""
        best, usable = self._best(pack(prompt))
        if usable < MIN_REUSED_TOKENS:
            self._misses += counted
            return None, 0
        self._entries.move_to_end(best)
        entry = self._entries[best]
        layers = copy.deepcopy(entry.layers)
        if entry.length > usable:
            for layer in layers:
                layer.trim(entry.length - usable)
        entry.used_at = self._clock()
        if counted:
            entry.hits += 1
            self._hits += 1
            self._saved += usable
        return layers, usable

    def store(self, tokens: Sequence[int], layers: Layers) -> None:
        """Keeps `layers`, which hold exactly `tokens`; the caller must not change them any more.

        A trimmable entry serves every beginning of itself, so it replaces those that are one, and
        is not kept where a longer one is there already.
        """
        self.put(pack(tokens), layers)

    def put(self, key: bytes, layers: Layers, *, saved: bool = False) -> None:
        """As `store`, for tokens that are packed already."""
        entry = Entry(key, layers, nbytes_of(key, layers), self._clock(), saved=saved)
        if entry.nbytes > self._limit or entry.length < MIN_REUSED_TOKENS:
            return
        if trimmable(layers):
            for held, other in self._entries.items():
                if len(held) > len(key) and held.startswith(key) and trimmable(other.layers):
                    self._entries.move_to_end(held)
                    return
            for held in [held for held in self._entries if key.startswith(held)]:
                self._replace(held, entry)
        elif key in self._entries:
            self._replace(key, entry)
        self.make_room(entry.nbytes)
        self._evaluate(layers)
        self._entries[key] = entry
        self._nbytes += entry.nbytes

    def _replace(self, key: bytes, new: Entry) -> None:
        old = self._drop(key)
        if old.key == new.key:
            new.saved, new.hits = new.saved or old.saved, old.hits

    def _best(self, key: bytes) -> tuple[bytes, int]:
        best, usable = b"", 0
        for stored, entry in self._entries.items():
            length = usable_tokens(stored, key, whole=not trimmable(entry.layers))
            if length >= usable:
                best, usable = stored, length
        return best, usable

    def _drop(self, key: bytes) -> Entry:
        entry = self._entries.pop(key)
        self._nbytes -= entry.nbytes
        return entry


def nbytes_of(key: bytes, layers: Layers) -> int:
    """What an entry counts as."""
    return sum(int(layer.nbytes) for layer in layers) + len(key)


def trimmable(layers: Layers) -> bool:
    """Whether they can be cut back to any beginning of what they hold.

    A chunked layer says so of itself even where it has dropped its oldest tokens.
    """
    return all(layer.is_trimmable() and not getattr(layer, "start_position", 0) for layer in layers)


def usable_tokens(stored: bytes, prompt: bytes, *, whole: bool) -> int:
    """How many tokens of `prompt` an entry can stand for: all it holds where it is `whole`."""
    common = _common_prefix(stored, prompt) // _ITEM
    usable = min(common, len(prompt) // _ITEM - 1)
    return usable if usable == len(stored) // _ITEM or not whole else 0


def pack(tokens: Sequence[int]) -> bytes:
    """Tokens as an entry's key."""
    return array("I", tokens).tobytes()


def unpack(key: bytes) -> list[int]:
    """The tokens of an entry's key."""
    tokens = array("I")
    tokens.frombytes(key)
    return tokens.tolist()


def _common_prefix(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
