"""Kept responses on disk, so that they outlast the gateway: a mirror of the store in memory.

The store decides what is kept and for how long, so the same bounds hold for both; the mirror is
read once, at the start. One thread of its own owns the SQLite connection, and writes the latest
state of each response behind the store's back. A disk that cannot be written costs nobody an
answer: one warning, another try every `RETRY_S`, and what is kept is in memory alone until then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.api.responses_store import Stored

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger("gateway.responses")

VERSION = 1
MAX_PENDING = 16_384
RETRY_S = 30.0
OPEN_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0

_Aged = tuple[Stored, float]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Stored).decode


class Disk:
    """The file at `path`, readable by its owner alone, as large as `max_bytes` about twice."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        # Under the condition's lock: what is to be written, None for what is to be deleted.
        self._pending: dict[str, Stored | None] = {}
        self._wipe = False
        self._closing = False
        self._failing = False
        self._thread: threading.Thread | None = None

    def open(self) -> list[_Aged]:
        """What is there, oldest first, each with its age in seconds; then it can be written.

        A file that cannot be read is left alone, and so is the disk until the next start.
        """
        found: Future[list[_Aged]] = Future()
        thread = threading.Thread(
            target=self._run, args=(found,), name="stored responses", daemon=True
        )
        thread.start()
        try:
            rows = found.result(OPEN_TIMEOUT_S)
        except TimeoutError:
            self._warn_unread(f"no answer in {OPEN_TIMEOUT_S:g} s")
            return []
        self._thread = thread
        return rows

    def put(self, stored: Stored) -> None:
        self._note(stored.id, stored)

    def delete(self, response_id: str) -> None:
        self._note(response_id, None)

    def close(self) -> None:
        """Writes what is left, within bounds, and lets go of the file."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _note(self, response_id: str, stored: Stored | None) -> None:
        if self._thread is None or not self._thread.is_alive():
            return  # it could not be opened
        with self._changed:
            self._pending[response_id] = stored
            if len(self._pending) > MAX_PENDING:
                # What it owes the disk is bounded; what the disk still has may be out of date.
                self._pending.clear()
                self._wipe = True
            self._changed.notify()

    def _warn_unread(self, why: object) -> None:
        log.warning(
            "%s cannot be read (%s): responses are kept in memory alone; delete the file or make "
            "it readable, and start again",
            self._path,
            why,
        )

    # --- in the thread that owns the connection -----------------------------------------------

    def _run(self, found: Future[list[_Aged]]) -> None:
        import sqlite3

        try:
            connection = _connect(self._path, 2 * self._max_bytes)
            rows = _rows(connection, time.time())
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            self._warn_unread(error)
            found.set_result([])
            return
        found.set_result(rows)
        try:
            while self._write_next(connection):
                pass
        finally:
            connection.close()

    def _write_next(self, connection: Connection) -> bool:
        """Writes what there is, once there is anything. Whether to go on."""
        import sqlite3

        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._wipe or self._closing)
            changes, self._pending = self._pending, {}
            wipe, self._wipe = self._wipe, False
        try:
            _write(connection, changes, wipe, time.time())
        except sqlite3.Error as error:
            self._failed(error)
            with self._changed:
                self._pending = {**changes, **self._pending}
                self._wipe = self._wipe or wipe
                self._changed.wait_for(lambda: self._closing, RETRY_S)
                return not self._closing
        self._failing = False
        with self._changed:
            return not (self._closing and not self._pending)

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            log.warning(
                "%s cannot be written (%s): responses are kept in memory alone until it can; free "
                "space, or make its folder writable",
                self._path,
                error,
            )
        self._failing = True


def _connect(path: Path, max_bytes: int) -> Connection:
    """Raises `sqlite3.Error`, `OSError`."""
    import sqlite3

    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    path.chmod(0o600)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        _prepare(connection, max_bytes)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: Connection, max_bytes: int) -> None:
    """Makes the table in a new file; in one of this version it changes nothing."""
    import sqlite3

    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")
    if version == 0:
        # So that the file shrinks with what it holds; it has no effect after the first table.
        connection.execute("PRAGMA auto_vacuum = FULL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS responses (id TEXT PRIMARY KEY, kept_at REAL, data BLOB)"
        )
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("PRAGMA secure_delete = ON")
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA max_page_count = {max(64, max_bytes // page_bytes)}")


def _rows(connection: Connection, now: float) -> list[_Aged]:
    try:
        rows = connection.execute("SELECT kept_at, data FROM responses ORDER BY kept_at")
        return [(_decode(data), max(0.0, now - kept_at)) for kept_at, data in rows]
    except BaseException:
        connection.close()
        raise


def _write(
    connection: Connection, changes: Mapping[str, Stored | None], wipe: bool, now: float
) -> None:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if wipe:
            connection.execute("DELETE FROM responses")
        for response_id, stored in changes.items():
            if stored is None:
                connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))
            else:
                row = (response_id, now, _encode(stored))
                connection.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?)", row)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
