"""Bytes of this process as the system counts them against memory. Reads only, keeps nothing."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")
_STATM = Path("/proc/self/statm")

_RUSAGE_INFO_V4 = 4
_RUSAGE_INFO_V4_BYTES = 296
_PHYS_FOOTPRINT_OFFSET = 72
"""`struct rusage_info_v4` of <sys/resource.h>: a 16-byte uuid, then u64 fields; this is the 8th."""


def process_bytes() -> int:
    """The memory that would come back if this process ended; 0 where it cannot be read.

    Linux: the unique set size; the resident size where the kernel shows no roll-up. macOS: the
    physical footprint, which counts Metal buffers and compressed pages.
    """
    read = _READERS.get(sys.platform)
    return 0 if read is None else read()


def _linux_bytes() -> int:
    try:
        return unique_bytes(_ROLLUP.read_text())
    except (OSError, ValueError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def unique_bytes(rollup: str) -> int:
    """Sums the private lines of a `smaps_rollup`. Raises `ValueError` when it has none."""
    sizes = [
        int(line.split()[1]) * 1024
        for line in rollup.splitlines()
        if line.startswith(("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"))
    ]
    if not sizes:
        raise ValueError("no private lines in the roll-up")
    return sum(sizes)


def _darwin_bytes() -> int:  # not run on macOS
    buffer = ctypes.create_string_buffer(_RUSAGE_INFO_V4_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V4, buffer) != 0:
        return 0
    return ctypes.c_uint64.from_buffer(buffer, _PHYS_FOOTPRINT_OFFSET).value


_READERS = {"linux": _linux_bytes, "darwin": _darwin_bytes}
