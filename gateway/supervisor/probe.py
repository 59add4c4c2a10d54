"""Where the figures about memory come from: the system's, or a scripted registry's own claims.

The one place that asks the system about memory; everything else is told. Figures are bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engines import wire
from gateway.registry.schema import Entry
from gateway.residency import Pressure

PLATFORM: str = sys.platform
GIB = 2**30
SMALL_MAC_BYTES = 36 * GIB
RECLAIM_TIMEOUT_S = 3.0
RECLAIM_POLL_S = 0.05
WARNING_FRACTION = 0.05
CRITICAL_FRACTION = 0.02
"""Of all memory: with less than this available, Linux is about to reclaim and then to kill."""


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """All there is, and the most that models may take of it."""

    total_bytes: int
    ceiling_bytes: int


class Probe(Protocol):
    """What the supervisor asks about memory."""

    def available_bytes(self) -> int:
        """What the system could give to a new process right now."""

    def pressure(self) -> Pressure:
        """How the system as a whole fares."""

    async def stranded_bytes(self, available_before: int, measured: int) -> int:
        """How much of an ended process's memory has not come back after a bounded wait."""


class SystemProbe:
    """The real machine's figures; where the system does not tell, the last ones it told."""

    def __init__(self) -> None:
        self._total = self._available = system_memory().total_bytes

    def available_bytes(self) -> int:
        import psutil

        # Asking takes a descriptor. Without one left, serving on is better than dying of it.
        with contextlib.suppress(OSError):
            self._available = int(psutil.virtual_memory().available)
        return self._available

    def pressure(self) -> Pressure:
        if PLATFORM == "darwin":
            return _mac_pressure()
        available = self.available_bytes()
        if available < CRITICAL_FRACTION * self._total:
            return "critical"
        return "warning" if available < WARNING_FRACTION * self._total else "normal"

    async def stranded_bytes(self, available_before: int, measured: int) -> int:
        # Linux has the pages back when the process is reaped; Metal may take its time.
        if PLATFORM != "darwin":
            return 0
        return await wait_for_memory(self, available_before, measured)


class ScriptedProbe(SystemProbe):
    """For registries of scripted engines only, whose memory is a claim: nothing is ever short."""

    def pressure(self) -> Pressure:
        return "normal"

    async def stranded_bytes(self, available_before: int, measured: int) -> int:
        return 0


async def wait_for_memory(probe: Probe, available_before: int, measured: int) -> int:
    """Polls until half of `measured` is back; what is missing of that half after the bound.

    Half, because other programs take and give memory meanwhile.
    """
    wanted = measured // 2
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RECLAIM_TIMEOUT_S
    while True:
        missing = max(0, available_before + wanted - probe.available_bytes())
        if not missing or loop.time() >= deadline:
            return missing
        await asyncio.sleep(RECLAIM_POLL_S)


def measured_bytes(entry: Entry, memory: wire.Memory) -> int:
    """An engine's footprint: as the system counts it, or as a scripted engine claims it."""
    if entry.engine == "scripted":
        return memory.weights_bytes + memory.kv_bytes + memory.prompt_cache_bytes
    return memory.process_bytes


def system_memory() -> SystemMemory:
    total = _total_bytes()
    if PLATFORM == "darwin":
        return SystemMemory(total, _mac_ceiling(total))
    return SystemMemory(total, total)


def _total_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        text = limit.read_text().strip()
    except OSError:
        return total  # no cgroup v2 here
    return min(total, int(text)) if text.isdigit() else total


# not run on macOS
def _mac_ceiling(total: int) -> int:
    """`iogpu.wired_limit_mb` where set, else what Metal recommends as its working set."""
    wired_mb = _sysctl_int("iogpu.wired_limit_mb")
    if wired_mb:
        return wired_mb * 2**20
    return total * 2 // 3 if total <= SMALL_MAC_BYTES else total * 3 // 4


# not run on macOS
def _mac_pressure() -> Pressure:
    """`kern.memorystatus_vm_pressure_level`: 1 normal, 2 warning, 4 critical."""
    level = _sysctl_int("kern.memorystatus_vm_pressure_level")
    return "critical" if level >= 4 else "warning" if level >= 2 else "normal"


# not run on macOS
def _sysctl_int(name: str) -> int:
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    libc = ctypes.CDLL(None)
    failed = libc.sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return 0 if failed else value.value
