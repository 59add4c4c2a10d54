"""The writing of calls: which events a reader's findings become, and when.

Owner of the calls of one answer: their indices, their ids, and the events held back. A call is held
until it ends, so that text which turns out to be no call can still be shown as text; one whose
arguments outgrow `hold` characters is released, and from then on streams as it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from engines.parsers.events import CallArguments, CallEnd, CallStart, Event, add
from engines.parsers.source import NotACall

UNLIMITED = sys.maxsize


@dataclass(slots=True)
class CallWriter:
    """Writes calls to `out`; with `together` set, it holds them all."""

    out: list[Event]
    new_call_id: Callable[[], str]
    hold: int
    together: bool = False
    _index: int = 0
    _held: list[Event] = field(default_factory=list)
    _held_calls: int = 0
    _size: int = 0
    _open: bool = False
    _released: bool = False

    def start(self, name: str, call_id: str = "") -> None:
        """Begins a call. `call_id` is the model's own, where its format has one."""
        if not name or not name.isprintable():
            raise NotACall
        self._open, self._released, self._size = True, False, 0
        index = self._index + self._held_calls
        self._put(CallStart(index, call_id or self.new_call_id(), name))

    def write(self, text: str) -> None:
        """Adds a piece of the arguments; all pieces together are one JSON object."""
        if not text:
            return
        self._size += len(text)
        self._put(CallArguments(self._index + self._held_calls, text))
        if self._size > self.hold and not self.together:
            self._release()
            self._released = True

    def end(self) -> None:
        """Ends the call: it is complete, whatever comes after it."""
        self._put(CallEnd(self._index + self._held_calls))
        self._open = False
        if self._released:
            self._index += 1
        else:
            self._held_calls += 1
            if not self.together:
                self.commit()

    def hold_together(self) -> None:
        """From here to `commit` or `drop` nothing is written, however many calls there are."""
        self.together = True

    def commit(self) -> None:
        """Writes every call held."""
        self._release()
        self._index += self._held_calls
        self._held_calls, self.together = 0, False

    @property
    def holds_calls(self) -> bool:
        return self._held_calls > 0

    def drop(self) -> bool:
        """Forgets what is held. Returns whether a part of the open call was written already."""
        written = self._open and self._released
        self._index += written
        self._held.clear()
        self._held_calls, self._open, self._released, self.together = 0, False, False, False
        return written

    def _put(self, event: Event) -> None:
        add(self.out if self._released else self._held, event)

    def _release(self) -> None:
        for event in self._held:
            add(self.out, event)
        self._held.clear()
