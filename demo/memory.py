"""Memory at one moment, from three sides: the gateway's ledger, the processes, the system. Bytes.

The three never agree to the byte, and need not: the ledger holds a reservation, the processes hold
what they have touched, and the system has other users too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Moment:
    label: str
    committed: int
    engines: int
    gateway: int
    available: int
    resident: tuple[str, ...]


def process_bytes(pid: int) -> int:
    """What ending the process would give back: its unique set size, or what comes closest."""
    try:
        process = psutil.Process(pid)
        try:
            return int(process.memory_full_info().uss)
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def take(label: str, status: dict[str, Any], gateway_pid: int) -> Moment:
    """The moment of this `/v1/status`."""
    engines = [model for model in status["models"] if model["pid"]]
    return Moment(
        label=label,
        committed=status["memory"]["committed_bytes"],
        engines=sum(process_bytes(model["pid"]) for model in engines),
        gateway=process_bytes(gateway_pid),
        available=psutil.virtual_memory().available,
        resident=tuple(model["name"] for model in engines),
    )


def after_stop(label: str) -> Moment:
    """The moment when no gateway is left to be asked."""
    return Moment(label, 0, 0, 0, psutil.virtual_memory().available, ())


def table(moments: Sequence[Moment]) -> str:
    """The moments as aligned text, in MiB."""
    header = ("MiB", "ledger", "engines", "gateway", "available", "resident")
    rows: list[tuple[str, ...]] = [header]
    for moment in moments:
        sizes = (moment.committed, moment.engines, moment.gateway, moment.available)
        figures = [f"{size / MIB:,.0f}" for size in sizes]
        rows.append((moment.label, *figures, ", ".join(moment.resident) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 0 < column < len(header) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
