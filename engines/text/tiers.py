"""The prompt cache in memory with a tier on disk behind it, where the operator wants one.

An entry that was hit twice, or that nobody has used for a while, is written when the engine has
nothing else to do, one slice at a time. One that waits for long because the engine is never idle is
written between steps. What is evicted before that, or is left at the end, is written as far as
`LAST_MOMENT_S` goes. A longer hit on disk is loaded into memory first, within the limit of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from engines import wire
from engines.text.disk_cache import DiskCache, FileWriting, Stored
from engines.text.prompt_cache import (
    MIN_REUSED_TOKENS,
    Entry,
    Layers,
    PromptCache,
    pack,
)

WORTHY_HITS = 2
IDLE_S = 30.0
"""An entry is written when it was hit so often, or was not used for so long."""

PATIENCE_S = 60.0
"""A busy engine writes between steps what was to be written for so long."""

LAST_MOMENT_S = 1.0
"""Spent at most on writing what is left at the end, or evicted within `WINDOW_S`."""

WINDOW_S = 30.0

MIN_DISK_TOKENS = 64
"""Less is computed faster than it is read."""


class PromptTiers:
    """What `PromptCache` does, with `disk` behind it. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        limit: int,
        evaluate: Callable[[Layers], None],
        disk: DiskCache | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._memory = PromptCache(limit, evaluate, self._on_evicted, clock)
        self._disk = disk
        self._clock = clock
        self._writing: FileWriting | None = None
        self._written: Entry | None = None
        """What `_writing` writes."""
        self._late_at: float | None = None
        self._window_until = self._spend_until = 0.0

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @property
    def limit(self) -> int:
        return self._memory.limit

    def usable(self, prompt: Sequence[int]) -> int:
        """How many tokens of `prompt` a fetch would find; it counts as no use."""
        usable = self._memory.usable(prompt)
        stored = self._longer(prompt, usable)
        return usable if stored is None else stored[1]

    def stats(self) -> wire.PromptCacheStats:
        stats, disk = self._memory.stats(), self._disk
        if disk is None:
            return stats
        return msgspec.structs.replace(
            stats,
            disk_entries=disk.entries,
            disk_bytes=disk.nbytes,
            disk_hits=disk.hits,
            disk_bad_files=disk.bad_files,
        )

    def set_limit(self, limit: int) -> None:
        """Shrinks what is in memory to the new limit at once."""
        self._memory.set_limit(limit)

    def clear(self, matches: Callable[[bytes], bool] = lambda key: True) -> tuple[int, int]:
        """Drops matching entries from both tiers; how many those were, and their bytes."""
        if self._writing is not None and matches(self._writing.key):
            self._give_up()
        entries, nbytes = self._memory.clear(matches)
        if self._disk is not None:
            files, file_bytes = self._disk.clear(matches)
            entries, nbytes = entries + files, nbytes + file_bytes
        return entries, nbytes

    def fetch(self, prompt: Sequence[int], *, counted: bool = True) -> tuple[Layers | None, int]:
        """Layers that hold the first n tokens of `prompt`, and n; (None, 0) when none do."""
        if self._disk is not None:
            self._restore(self._disk, prompt)
        return self._memory.fetch(prompt, counted=counted)

    def store(self, tokens: Sequence[int], layers: Layers) -> None:
        """Keeps `layers`, which hold exactly `tokens`; the caller must not change them any more."""
        self._memory.store(tokens, layers)

    def background(self) -> float | None:
        """One slice of what is to be written; seconds until there is more, None for never."""
        if self._disk is None:
            return None
        if self._writing is None:
            wait = self._next_due(self._disk)
            if wait is None or wait > 0:
                return wait
        self._advance()
        return 0.0

    def between_steps(self) -> None:
        """One slice, when it has waited for long and the engine is never idle."""
        if self._disk is None:
            return
        if self._writing is None:
            now = self._clock()
            worthy = next((entry for entry in self._memory if _worthy(entry)), None)
            if worthy is None or self._late_at is None:
                self._late_at = None if worthy is None else now + PATIENCE_S
            elif now >= self._late_at:
                self._begin(worthy)
        self._advance()

    def close(self) -> None:
        """Writes what is not on disk yet, the latest used first, as far as the time goes."""
        if self._disk is not None:
            until = self._clock() + LAST_MOMENT_S
            self._finish(until)
            for entry in reversed(list(self._memory)):
                if not entry.saved and self._clock() < until and self._begin(entry):
                    self._finish(until)
            self._give_up()
        self._disk = None
        self._memory.clear()

    # --- writing --------------------------------------------------------------------------------

    def _next_due(self, disk: DiskCache) -> float | None:
        """Begins what is due; else seconds until something is, None when nothing will be."""
        now, first = self._clock(), None
        for entry in self._memory:
            if entry.saved or entry.length < MIN_DISK_TOKENS:
                continue
            idle = 0.0 if _worthy(entry) else entry.used_at + IDLE_S - now
            wait = max(idle, disk.pause_s)
            if wait <= 0:
                if self._begin(entry):
                    return 0.0
                wait = disk.pause_s  # which may have begun just now
            if wait > 0:
                first = wait if first is None else min(first, wait)
        return first

    def _begin(self, entry: Entry) -> bool:
        """Whether it is being written now; what has no place on disk is not tried again.

        What a pause keeps from being written is, later.
        """
        if self._disk is None or entry.saved or entry.length < MIN_DISK_TOKENS:
            return False
        self._writing, self._written = self._disk.begin(entry.key, entry.layers), entry
        entry.saved = self._writing is not None or not self._disk.pause_s
        return self._writing is not None

    def _advance(self) -> None:
        if self._writing is not None and self._writing.advance():
            if self._written is not None and self._writing.failed:
                self._written.saved = False
            self._writing = self._written = None

    def _finish(self, until: float) -> None:
        while self._writing is not None and self._clock() < until:
            self._advance()

    def _give_up(self) -> None:
        if self._writing is not None:
            self._writing.give_up()
            self._writing = self._written = None

    def _on_evicted(self, entry: Entry) -> None:
        """Its memory is wanted now, so it is written at once or not at all."""
        now = self._clock()
        if now >= self._window_until:
            self._window_until, self._spend_until = now + WINDOW_S, now + LAST_MOMENT_S
        if self._writing is None:
            if not entry.hits or now >= self._spend_until or not self._begin(entry):
                return
        elif self._writing.key != entry.key:
            return
        self._finish(self._spend_until)
        self._give_up()

    # --- reading --------------------------------------------------------------------------------

    def _restore(self, disk: DiskCache, prompt: Sequence[int]) -> None:
        """Brings what is longer on disk than in memory into memory."""
        found = self._longer(prompt, self._memory.usable(prompt))
        if found is None:
            return
        label = found[0].label
        self._memory.make_room(label.nbytes)
        layers = disk.load(found[0])
        if layers is not None:
            self._memory.put(label.key, layers, saved=True)

    def _longer(self, prompt: Sequence[int], usable: int) -> tuple[Stored, int] | None:
        """The file that is worth loading, if it may be in memory at all, and its tokens of use."""
        if self._disk is None or len(prompt) <= MIN_DISK_TOKENS:
            return None
        least = max(usable + MIN_REUSED_TOKENS, MIN_DISK_TOKENS)
        found = self._disk.find(pack(prompt), least)
        if found is None or found[0].label.nbytes > self._memory.limit:
            return None
        return found


def _worthy(entry: Entry) -> bool:
    """It was useful more than once and is not on disk."""
    return not entry.saved and entry.hits >= WORTHY_HITS and entry.length >= MIN_DISK_TOKENS
