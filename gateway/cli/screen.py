"""What verbs print: tables, sizes, times, a progress bar; colours where a terminal shows them.

Text that comes from a server or a file goes through `plain` first, so that it cannot steer the
terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BAR = 24


def plain(text: object) -> str:
    """Without control characters but for tabs and new lines."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))


def say(text: str = "", *, to: TextIO | None = None) -> None:
    (to or sys.stdout).write(f"{text}\n")


def say_json(value: Any) -> None:
    say(json.dumps(value, indent=2, ensure_ascii=False))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as what is in them."""
    cells = [list(head), *([plain(cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(head))]
    for line in cells:
        say("  ".join(map(str.ljust, line, widths)).rstrip())


def gib(size: float | None) -> str:
    """Bytes in the unit of the registry."""
    return "-" if size is None else f"{size / 2**30:.2f} GiB"


def seconds(value: float | None) -> str:
    """A duration in its two largest units."""
    if value is None:
        return "-"
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def coloured(text: str, code: str, stream: TextIO | None = None) -> str:
    """With an SGR code, where the stream is a terminal and nobody asked for no colours."""
    stream = stream or sys.stdout
    if os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


class Bar:
    """Progress on stderr: one line that is redrawn on a terminal, lines of their own elsewhere."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._said = ""

    def show(self, done: float, total: float, note: str = "") -> None:
        share = min(1.0, done / total) if total else 0.0
        step = share if self._live else int(share * 10) / 10
        filled = round(step * _BAR)
        bar = f"[{'#' * filled}{'.' * (_BAR - filled)}] {step:4.0%}" if total else "..."
        text = f"{self._label} {bar} {plain(note)}".rstrip()
        if text == self._said:
            return
        self._said = text
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        if self._live and self._said:
            self._stream.write("\n")
            self._stream.flush()
