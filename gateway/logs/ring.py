"""The last lines in memory, and those who follow them.

`LogBook` owns both. It belongs to the event loop's thread; `BookHandler` brings it what any thread
logs. A follower that does not keep up loses the oldest lines and is told how many.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gateway.logs.lines import LEVELS, Line, cut, line_of

RING_BYTES = 4 * 2**20
LINE_OVERHEAD_BYTES = 300
MAX_PARTIAL_BYTES = 64 * 2**10
"""An engine that writes no end of a line has one made for it here."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Lines of this model, or of everything; of this level and above."""

    model: str | None = None
    level: int = 0

    def matches(self, line: Line) -> bool:
        return LEVELS.get(line.level, 50) >= self.level and self.model in (None, line.model)


Tell = Callable[[Line], None]


@dataclass(slots=True)
class LogBook:
    """`limit` bounds the ring in bytes."""

    limit: int = RING_BYTES
    _lines: deque[Line] = field(default_factory=deque)
    _bytes: int = 0
    _followers: dict[object, tuple[Wanted, Tell]] = field(default_factory=dict)
    _partial: dict[str, bytes] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        self._lines.append(line)
        self._bytes += _size(line)
        while self._bytes > self.limit and self._lines:
            self._bytes -= _size(self._lines.popleft())
        for wanted, tell in self._followers.values():
            if wanted.matches(line):
                tell(line)

    def heard(self, model: str, at: float, data: bytes) -> list[str]:
        """What an engine wrote to its stderr, in any pieces; returns the lines it completed."""
        *whole, rest = (self._partial.pop(model, b"") + data).split(b"\n")
        if len(rest) > MAX_PARTIAL_BYTES:
            whole, rest = [*whole, rest], b""
        if rest:
            self._partial[model] = rest
        return [self._engine_line(model, at, each) for each in whole if each.strip()]

    def ended(self, model: str, at: float) -> list[str]:
        """The engine is gone: what it has not ended is a line too."""
        rest = self._partial.pop(model, b"")
        return [self._engine_line(model, at, rest)] if rest.strip() else []

    def _engine_line(self, model: str, at: float, data: bytes) -> str:
        text = cut(data.decode("utf-8", "replace").rstrip("\r"))
        self.add(Line(round(at, 3), "INFO", "engine", text, model))
        return text

    def tail(self, wanted: Wanted, count: int) -> list[Line]:
        """The last lines, oldest first."""
        found: list[Line] = []
        for line in reversed(self._lines):
            if len(found) >= count:
                break
            if wanted.matches(line):
                found.append(line)
        return found[::-1]

    def follow(self, wanted: Wanted, tell: Tell) -> Callable[[], None]:
        """Tells of every line from now on, until what it returns is called."""
        key = object()
        self._followers[key] = (wanted, tell)
        return lambda: self._followers.pop(key, None) and None

    @property
    def followers(self) -> int:
        return len(self._followers)


def _size(line: Line) -> int:
    return LINE_OVERHEAD_BYTES + 2 * len(line.line)


class BookHandler(logging.Handler):
    """Brings what is logged, by whatever thread, into the book."""

    def __init__(self, book: LogBook, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._book = book
        self._loop = loop
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = line_of(record)
            if threading.get_ident() == self._thread:
                self._book.add(line)
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._book.add, line)
        except Exception:  # noqa: BLE001  a line that cannot be told must not end its cause
            self.handleError(record)


def shown(lines: Iterable[Line]) -> list[Line]:
    """Without the fields, which are for programs that read the log itself."""
    return [Line(line.at, line.level, line.source, line.line, line.model) for line in lines]
