"""A folder in which a model comes together, and its move to where it belongs.

Under the final name there is the whole model or nothing. The folder belongs to one process at a
time, and stays when that ends early: what is in it is used again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from engines.tools.errors import ToolError

_LOCK = ".lock"
SPARE_BYTES = 64 * 2**20
"""Left free on the disk beside what a model takes."""


@contextlib.contextmanager
def staging(folder: Path, target: Path) -> Iterator[None]:
    """Makes `folder` and holds it alone. Raises `ToolError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_dev != target.parent.stat().st_dev:
            raise ToolError(
                f"{folder} and {target.parent} are on different disks; a model is moved into place "
                "in one step, so name a staging folder beside the target",
                "usage",
            )
        lock = (folder / _LOCK).open("w", encoding="utf-8")
    except OSError as error:
        raise ToolError(f"{folder} cannot be made: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ToolError(f"another process is at work in {folder}; wait for it") from None
        yield


def check_target(target: Path) -> None:
    """Raises `ToolError` where something is there that a move would replace."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise ToolError(f"{target} is there already; name another folder or move it away", "usage")


def check_room(folder: Path, needed: int) -> None:
    """Raises `ToolError` where the disk of `folder` is too full for `needed` bytes more."""
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise ToolError(
            f"{needed / 2**30:.2f} GiB are still needed and {free / 2**30:.2f} GiB are free on the "
            f"disk of {folder}; make room, or name a folder on another disk"
        )


def put(made: Path, folder: Path, target: Path) -> None:
    """Moves the finished model `made`, which is in the staging `folder`, to `target`, and removes
    the rest. Raises `ToolError`."""
    try:
        os.rename(made, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            check_target(target)
        raise ToolError(f"{made} cannot be moved to {target}: {error.strerror or error}") from error
    shutil.rmtree(folder, ignore_errors=True)
