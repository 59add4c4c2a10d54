"""Tells when the content of one file has changed, however it was saved.

The folder is watched rather than the file, because editors rename a new file over the old one and
deployments switch a link; where the file is a link, the folder it leads to is watched too. Only
content counts, as its SHA-256. `Settling` decides and is pure; `watch_file` owns one and does the
reading and waiting. Nothing here can fail for good: where the system cannot report changes, or
the folder is gone, the file is looked at every `POLL_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.threads import in_thread

log = logging.getLogger("gateway.watcher")

QUIET_S = 0.2
"""Content that stays the same for so long is a save that is over."""

EMPTY_QUIET_S = 2.0
"""The same for an empty file, which is what an editor leaves between truncating and writing."""

MAX_SETTLE_S = 3.0
"""A file that never rests counts as changed after so long."""

POLL_S = 1.0
"""Longest time between two looks, for what the system does not report (links further up)."""

MAX_BYTES = 2**21
"""Twice the largest file that is ever loaded; what lies beyond cannot matter."""

_STEP_MS = 150
_DEBOUNCE_MS = 600

_EMPTY = hashlib.sha256().hexdigest()


def digest(path: Path) -> str | None:
    """SHA-256 of the content in hex; None when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.sha256(stream.read(MAX_BYTES)).hexdigest()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the content means; `again_s` is when to look once more, unless idle."""

    changed: bool = False
    again_s: float | None = None


class Settling:
    """Decides when content that differs from the known one has come to rest.

    A file that is gone is no change: what it said last counts until it is back.
    """

    def __init__(self, known: str | None) -> None:
        self.known = known
        self._candidate: str | None = None
        self._since = 0.0
        self._began: float | None = None

    def see(self, content: str | None, now: float) -> Look:
        """`now` in seconds, from any clock that does not go back."""
        if content is None or content == self.known:
            self._began = self._candidate = None
            return Look()
        if self._began is None:
            self._began = now
        if content != self._candidate:
            self._candidate, self._since = content, now
        quiet = EMPTY_QUIET_S if content == _EMPTY else QUIET_S
        left = min(self._since + quiet, self._began + MAX_SETTLE_S) - now
        if left > 0:
            return Look(again_s=left)
        self.known = content
        self._began = self._candidate = None
        return Look(changed=True)


async def watch_file(
    path: Path, changed: Callable[[], None], stop: asyncio.Event, *, known: str | None = None
) -> None:
    """Calls `changed` once for each save, or burst of saves, that left other content at `path`.

    `known` is the `digest` of what is in force already, so that a save before the watch began is
    noticed; without it, what is there now. Returns soon after `stop` is set. `changed` runs in the
    event loop and must not raise.
    """
    # It says "1 change detected" at info, for every file of the folder.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    first = await in_thread(digest, path)
    settling = Settling(first if known is None else known)
    gone = False
    async with contextlib.aclosing(_wakeups(path, stop)) as wakeups:
        async for _ in wakeups:
            content = await _settled(path, settling, changed, stop)
            if (content is None) != gone:
                gone = content is None
                _tell(path, gone)


async def _settled(
    path: Path, settling: Settling, changed: Callable[[], None], stop: asyncio.Event
) -> str | None:
    """Looks until there is nothing to wait for; returns the digest of the last look."""
    now = asyncio.get_running_loop().time
    while True:
        content = await in_thread(digest, path)
        look = settling.see(content, now())
        if look.changed:
            changed()
        if look.again_s is None or stop.is_set():
            return content
        await _pause(stop, look.again_s)


def _tell(path: Path, gone: bool) -> None:
    if gone:
        log.warning("%s is gone or unreadable; what it said last counts until it is back", path)
    else:
        log.info("%s is there again", path)


class _Stop(asyncio.Event):
    """Also set when the event it stands for is; `awatch` sets its own one when it is cancelled."""

    def __init__(self, outer: asyncio.Event) -> None:
        super().__init__()
        self._outer = outer

    def is_set(self) -> bool:
        return super().is_set() or self._outer.is_set()


async def _wakeups(path: Path, stop: asyncio.Event) -> AsyncGenerator[None, None]:
    """Yields whenever the content may be another, at least every `POLL_S`, until `stop` is set."""
    told = False
    while not stop.is_set():
        yield
        folders = _folders(path)
        if not folders:
            await _pause(stop, POLL_S)
            continue
        try:
            from watchfiles import awatch

            changes = awatch(
                *sorted(folders),
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                stop_event=_Stop(stop),
                rust_timeout=round(POLL_S * 1000),
                yield_on_timeout=True,
                recursive=False,
            )
            async with contextlib.aclosing(changes):
                async for _ in changes:
                    yield
                    if _folders(path) != folders:
                        break  # a folder or link was replaced, and the watch is on the old one
        except (ImportError, OSError, RuntimeError, ExceptionGroup) as error:
            # RuntimeError is what watchfiles raises, in a group once it has begun to watch.
            if not told:
                log.warning("changes of %s are polled for, not watched: %s", path, error)
            told = True
            await _pause(stop, POLL_S)


def _folders(path: Path) -> dict[str, tuple[int, int]]:
    """The folders that exist of the file and of what it leads to, with device and inode."""
    found: dict[str, tuple[int, int]] = {}
    for folder in (path.parent, Path(os.path.realpath(path)).parent):
        with contextlib.suppress(OSError):
            stat = folder.stat()
            found[str(folder)] = (stat.st_dev, stat.st_ino)
    return found


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
