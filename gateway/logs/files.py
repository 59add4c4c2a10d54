"""Log files that keep within a size, written by a thread of their own.

The thread alone opens, writes and renames. Whoever has a line gives it away without waiting; when
the disk does not keep up, lines are lost and counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gateway.logs.lines import Formatter

MAX_WAITING = 8_192
MOST_OPEN = 32
CLOSE_S = 5.0
MODE = 0o600


@dataclass(frozen=True, slots=True)
class Rotation:
    """A file is put aside when it has this many bytes; so many old ones stay beside it."""

    max_bytes: int
    keep: int


GATEWAY = Rotation(10 * 2**20, 5)
ENGINE = Rotation(2**20, 2)


@dataclass(slots=True)
class _Open:
    stream: IO[bytes]
    size: int


class LogFiles:
    """`lost` counts lines that could not be written, or were too many at once."""

    def __init__(self) -> None:
        self.lost = 0
        self._waiting: queue.Queue[tuple[Path, Rotation, bytes] | None] = queue.Queue(MAX_WAITING)
        self._open: dict[Path, _Open] = {}
        self._thread = threading.Thread(target=self._run, name="log files", daemon=True)
        self._started = False

    def write(self, path: Path, rotation: Rotation, text: str) -> None:
        """One line, without its end."""
        if not self._started:
            self._started = True
            self._thread.start()
        data = text.encode("utf-8", "replace") + b"\n"
        try:
            self._waiting.put_nowait((path, rotation, data))
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Everything given so far is written, within a bound."""
        if self._started:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            path, rotation, data = job
            try:
                self._append(path, rotation, data)
            except OSError:
                self.lost += 1
                self._forget(path)
        for path in list(self._open):
            self._forget(path)

    def _append(self, path: Path, rotation: Rotation, data: bytes) -> None:
        file = self._open.get(path)
        if file is not None and file.size + len(data) > rotation.max_bytes and file.size:
            self._forget(path)
            _put_aside(path, rotation.keep)
            file = None
        if file is None:
            if len(self._open) >= MOST_OPEN:  # whichever has been open for longest
                self._forget(next(iter(self._open)))
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stream = open(path, "ab", buffering=0, opener=_private)  # noqa: SIM115  kept open
            file = self._open[path] = _Open(stream, stream.tell())
        file.stream.write(data)
        file.size += len(data)

    def _forget(self, path: Path) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            with contextlib.suppress(OSError):
                file.stream.close()


class FileHandler(logging.Handler):
    """The gateway's own log in a file, instead of on stderr."""

    def __init__(self, files: LogFiles, path: Path, formatter: Formatter) -> None:
        super().__init__()
        self._files = files
        self._path = path
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._files.write(self._path, GATEWAY, self.format(record))
        except Exception:  # noqa: BLE001  a line that cannot be told must not end its cause
            self.handleError(record)


def engine_file(folder: Path, model: str) -> Path:
    """The file of one model; names of models may hold slashes."""
    safe = "".join(each if each.isalnum() or each in "._-" else "_" for each in model)
    return folder / f"{safe.strip('.') or 'model'}.log"


def _put_aside(path: Path, keep: int) -> None:
    """`x.log` becomes `x.log.1`, that `x.log.2`, and so on; the oldest goes."""
    for number in range(keep - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
    os.replace(path, f"{path}.1")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, MODE)
