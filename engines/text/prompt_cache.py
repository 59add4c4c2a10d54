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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engines import wire

MIN_REUSED_TOKENS = 8
"""A shorter common beginning is the template's first words, not worth a copy."""

Layers = list[Any]

_ITEM = array("I").itemsize


@dataclass(frozen=True, slots=True)
class _Entry:
    layers: Layers
    length: int
    nbytes: int


class PromptCache:
    """Least recently used first out. `limit` and all sizes are bytes.

    `evaluate` makes the arrays of some layers real; it is called before they are kept, because an
    array still to be computed holds the whole batch it came from in memory.
    """

    def __init__(self, limit: int, evaluate: Callable[[Layers], None]) -> None:
        self._limit = limit
        self._evaluate = evaluate
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._nbytes = 0
        self._hits = 0
        self._misses = 0
        self._saved = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def stats(self) -> wire.PromptCacheStats:
        return wire.PromptCacheStats(len(self._entries), self._hits, self._misses, self._saved)

    def set_limit(self, limit: int) -> None:
        """Shrinks to the new limit at once."""
        self._limit = limit
        self._shrink()

    def cleared(self, question_id: int) -> wire.Cleared:
        """Drops everything, and says how much that was."""
        cleared = wire.Cleared(question_id, len(self._entries), self._nbytes)
        self._entries.clear()
        self._nbytes = 0
        return cleared

    def fetch(self, prompt: Sequence[int]) -> tuple[Layers | None, int]:
        """Layers that hold the first n tokens of `prompt`, and n; (None, 0) when none do."""
        key = _pack(prompt)
        best, usable = b"", 0
        for stored, entry in self._entries.items():
            length = _usable(stored, entry, key)
            if length >= usable:
                best, usable = stored, length
        if usable < MIN_REUSED_TOKENS:
            self._misses += 1
            return None, 0
        self._entries.move_to_end(best)
        entry = self._entries[best]
        layers = copy.deepcopy(entry.layers)
        if entry.length > usable:
            for layer in layers:
                layer.trim(entry.length - usable)
        self._hits += 1
        self._saved += usable
        return layers, usable

    def store(self, tokens: Sequence[int], layers: Layers) -> None:
        """Keeps `layers`, which hold exactly `tokens`; the caller must not change them any more.

        A trimmable entry serves every beginning of itself, so it replaces those that are one, and
        is not kept where a longer one is there already.
        """
        key = _pack(tokens)
        nbytes = sum(int(layer.nbytes) for layer in layers) + len(key)
        if nbytes > self._limit or len(tokens) < MIN_REUSED_TOKENS:
            return
        if _trimmable(layers):
            for held, entry in self._entries.items():
                if len(held) > len(key) and held.startswith(key) and _trimmable(entry.layers):
                    self._entries.move_to_end(held)
                    return
            for held in [held for held in self._entries if key.startswith(held)]:
                self._drop(held)
        elif key in self._entries:
            self._drop(key)
        self._evaluate(layers)
        self._entries[key] = _Entry(layers, len(tokens), nbytes)
        self._nbytes += nbytes
        self._shrink()

    def _shrink(self) -> None:
        while self._nbytes > self._limit:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self._nbytes -= self._entries.pop(key).nbytes


def _trimmable(layers: Layers) -> bool:
    return all(layer.is_trimmable() for layer in layers)


def _usable(stored: bytes, entry: _Entry, prompt: bytes) -> int:
    """How many tokens of `prompt` this entry can stand for."""
    common = _common_prefix(stored, prompt) // _ITEM
    usable = min(common, len(prompt) // _ITEM - 1)
    return usable if usable == entry.length or _trimmable(entry.layers) else 0


def _pack(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def _common_prefix(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
