"""The run directory: the lock, the address and the pids of the engines, and nothing else's.

One gateway per directory. The engines' pids are kept with their creation times, so that a gateway
that was killed does not leave engines behind for good: the next one ends them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from threading import Lock

MODE = 0o700
CLEAR_S = 2.0
"""How long the end waits for a write that a thread is at."""


class AlreadyRunning(Exception):
    """Another gateway holds the directory."""


class Unwritable(Exception):
    """The directory is there, but nothing can be written to it."""


class RunDir:
    """Raises `AlreadyRunning`, or `OSError` where the directory cannot be used."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=MODE, parents=True, exist_ok=True)
        self.path = path
        self._over = False
        self._writing = Lock()
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if not isinstance(error, BlockingIOError):  # a file system without locks
                raise
            raise AlreadyRunning(
                f"another mlx-gateway runs with the state in {path.parent}; stop it, or give "
                "this one another place with MLX_GATEWAY_STATE_DIR"
            ) from None

    def write_address(self, url: str) -> None:
        """Raises `Unwritable`: nobody would find a gateway without it, so it should not start."""
        try:
            self._replace("address", url + "\n")
        except OSError as error:
            raise Unwritable(
                f"{self.path} cannot be written ({error.strerror or error}); free space, or give "
                "the state another place with MLX_GATEWAY_STATE_DIR"
            ) from error

    def engines(self) -> list[tuple[int, float]]:
        """Pid and creation time of each engine that was alive when the file was last written."""
        try:
            rows = json.loads((self.path / "engines.json").read_text())
            return [(int(pid), float(created)) for pid, created in rows]
        except (OSError, ValueError, TypeError):
            return []  # nothing was running, or nothing that can be known

    def write_engines(self, engines: list[tuple[int, float]]) -> None:
        """Safe in any thread; once the directory is cleared it writes nothing."""
        with self._writing:
            if not self._over:
                self._replace("engines.json", json.dumps(engines))

    def clear(self) -> None:
        """At an orderly end nothing is left to tell.

        What cannot be removed does no harm: no engine has these pids and creation times any more.
        """
        self._over = True
        written = self._writing.acquire(timeout=CLEAR_S)
        for name in ("address", "engines.json"):
            with contextlib.suppress(OSError):
                (self.path / name).unlink(missing_ok=True)
        if written:
            self._writing.release()

    def close(self) -> None:
        os.close(self._lock)

    def _replace(self, name: str, text: str) -> None:
        """Written whole or not at all: a reader never sees half of it."""
        temporary = self.path / f"{name}.new"
        try:
            temporary.write_text(text)
            temporary.replace(self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
