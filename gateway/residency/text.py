"""Sizes, durations and counts as a person reads them in an error message."""

from __future__ import annotations


def size(count: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1 before the point.

    Binary, because `_gb` keys of the registry are GiB: 1 there has to read as 1 here.
    """
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def seconds(value: float) -> int:
    """Whole seconds, rounded up and at least 1, as `Retry-After` wants them."""
    return max(1, -int(-value // 1))


def calls(count: int) -> str:
    return "1 running call" if count == 1 else f"{count} running calls"
