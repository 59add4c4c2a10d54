"""A one-line progress bar in plain text. Owns nothing but the line it writes."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

_WIDTH = 24
_COARSE = 20
"""On something that is no terminal, a line is written every so many per cent."""


class Progress:
    """`label [####....]  17 %`, redrawn in place on a terminal, written line by line elsewhere.

    Units do not matter: `total` and the figures given to `update` only have to share one.
    """

    def __init__(self, label: str, total: int, out: TextIO | None = None) -> None:
        self._label = label
        self._total = max(total, 1)
        self._out = sys.stderr if out is None else out
        self._live = self._out.isatty()
        self._step = 1 if self._live else _COARSE
        self._shown = -1

    def update(self, done: int) -> None:
        """Shows that `done` of the total is reached; never goes back, never passes 100 %."""
        percent = min(100, max(0, done * 100 // self._total))
        percent -= percent % self._step
        if percent <= self._shown:
            return
        self._shown = percent
        filled = percent * _WIDTH // 100
        line = f"{self._label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {percent:3d} %"
        self._out.write(f"\r{line}" if self._live else f"{line}\n")
        self._out.flush()

    def __enter__(self) -> Self:
        self.update(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._live:
            self._out.write("\n")
            self._out.flush()
