"""The folders in which engines keep prompts on disk, as seen from the gateway.

Each model has one folder, named by its entry and the fingerprint of its files, so that other files
never meet what was made with these. An engine owns the files while it runs; without one the gateway
may count and remove them. A file that goes meanwhile is no fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from engines import wire
from gateway.registry.find import Model
from gateway.registry.units import gib

SUFFIX = ".safetensors"
STRAY_S = 30 * 86400.0
"""What no model wants on disk is kept for so long, as its entry may come back."""


class Files(NamedTuple):
    """How many there are, and their bytes."""

    entries: int = 0
    nbytes: int = 0


def folder_of(root: Path | None, model: Model) -> Path | None:
    """Where this model's prompts would be; None for one that keeps none on any disk."""
    fingerprint = model.size.fingerprint if model.size else ""
    if root is None or not fingerprint or model.entry.engine == "scripted":
        return None
    name = model.entry.of or model.entry.name
    return root / hashlib.sha256(f"{name}\0{fingerprint}".encode()).hexdigest()[:32]


def disk_cache(root: Path | None, model: Model) -> wire.DiskCache | None:
    """What its engine is told; None when the operator wants nothing on disk."""
    folder, entry = folder_of(root, model), model.entry
    if folder is None or model.size is None or not entry.prompt_cache_disk_gb:
        return None
    return wire.DiskCache(
        folder=str(folder),
        fingerprint=model.size.fingerprint,
        max_bytes=gib(entry.prompt_cache_disk_gb),
        max_age_s=entry.prompt_cache_disk_days * 86400,
    )


def count(folder: Path | None) -> Files:
    """What is there."""
    sizes = []
    for found in _files(folder):
        if found.name.endswith(SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(found.stat().st_size)
    return Files(len(sizes), sum(sizes))


def clear(folder: Path | None) -> Files:
    """Removes everything there and says what it was. No engine may be using it."""
    there = count(folder)
    for found in _files(folder):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(found.path)
    if folder is not None:
        with contextlib.suppress(OSError):  # it may not be there, or not be empty again
            folder.rmdir()
    return there


def sweep(root: Path, ages_s: Mapping[Path, float], now: float | None = None) -> int:
    """Removes old files and returns how many. `ages_s` is how old they may be, by folder.

    What is in any other folder is of no model, or of one that keeps nothing on disk any more.
    """
    removed, now = 0, time.time() if now is None else now
    with contextlib.suppress(FileNotFoundError):
        for folder in [path for path in root.iterdir() if path.is_dir()]:
            before = now - ages_s.get(folder, STRAY_S)
            for found in _files(folder):
                with contextlib.suppress(FileNotFoundError):
                    if found.stat().st_mtime < before:
                        os.unlink(found.path)
                        removed += 1
            with contextlib.suppress(OSError):  # not empty yet
                folder.rmdir()
    return removed


def _files(folder: Path | None) -> Iterator[os.DirEntry[str]]:
    if folder is None:
        return
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as listing:
        yield from [found for found in listing if found.is_file(follow_symlinks=False)]
