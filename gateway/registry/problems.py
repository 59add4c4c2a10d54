"""One thing that is wrong with what an operator wrote, and the nearest valid spelling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Level = Literal["error", "warning"]


class Problem(msgspec.Struct, frozen=True):
    """`line` is 1-based, 0 where there is none; `key` is a path such as `models[0].name`, or ""."""

    level: Level
    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        key = f"{self.key}: " if self.key else ""
        return f"{self.level}: {place}: {key}{self.message}"


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` for a close match, else an empty string."""
    from difflib import get_close_matches

    lowered = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower()[:64], lowered, n=1, cutoff=0.6)
    return f'; did you mean "{lowered[matches[0]]}"?' if matches else ""
