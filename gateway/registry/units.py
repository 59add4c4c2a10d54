"""Sizes: how they are read and written, and how large the memory budget is. Pure.

There is one meaning: a kilo is 1024 everywhere, so GB and GiB are both 2**30 bytes, and a bare
number in a `_gb` key is a number of those.
"""

from __future__ import annotations

import math
import re

from gateway.registry.schema import Manager

MIB = 2**20
GIB = 2**30

_UNITS = {"K": 2**10, "M": MIB, "G": GIB, "T": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGT])(?:i?B)?)?", re.ASCII | re.IGNORECASE)
_MAX_BYTES = 2**60


def parse_size(value: float | str) -> int:
    """Bytes of `80`, `"80"`, `"80GB"`, `"80 GiB"`, `"512MB"`; without a unit it is GiB.

    Raises `ValueError` with a reason that does not repeat the value (it may be a secret).
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("neither a number nor text")
    if not isinstance(value, str):
        return _bounded(float(value) * GIB)
    match = _SIZE.fullmatch(value.strip(" ")) if len(value) <= 40 else None
    if match is None:
        raise ValueError("write a number and one of the units KB, MB, GB, TB, KiB, MiB, GiB, TiB")
    number, unit = match.groups()
    return _bounded(float(number) * _UNITS[unit.upper() if unit else "G"])


def _bounded(size: float) -> int:
    if not math.isfinite(size):
        raise ValueError("it must be finite")
    if size < 0:
        raise ValueError("it must not be negative")
    if size > _MAX_BYTES:
        raise ValueError("it is larger than any machine")
    return round(size)


def gib(gigabytes: float) -> int:
    """Bytes of a value of a `_gb` key."""
    return round(gigabytes * GIB)


def format_size(size: int) -> str:
    """`1.5 GiB`, `256.0 MiB`: for people, one decimal."""
    if abs(size) >= GIB:
        return f"{size / GIB:.1f} GiB"
    return f"{size / MIB:.1f} MiB"


def budget_bytes(manager: Manager, total_bytes: int, ceiling_bytes: int) -> tuple[int, str | None]:
    """The memory budget in bytes, and a warning when it is not what the operator asked for.

    `total_bytes` is the machine's memory, `ceiling_bytes` the most that models can be given.
    `auto` leaves max(4 GiB, 15 %) of the machine to everything else, on a small machine less,
    but never takes more than the ceiling.
    """
    asked = manager.memory_budget_gb
    if asked == "auto":
        left = total_bytes - max(4 * GIB, total_bytes * 15 // 100)
        return min(ceiling_bytes, max(left, total_bytes // 4)), None
    budget = gib(asked)
    if budget <= ceiling_bytes:
        return budget, None
    return ceiling_bytes, (
        f"{format_size(budget)} is more than models can be given on this machine; "
        f"the budget is clamped to {format_size(ceiling_bytes)}"
    )
