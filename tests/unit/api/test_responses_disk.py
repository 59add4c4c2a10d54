"""Kept responses on disk: there after a restart, private, and no trouble when the disk is."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.api import responses_disk
from gateway.api.responses_disk import Disk
from gateway.api.responses_store import Log, Stored
from tests.unit.api.test_responses_store import stored

ROOM = 2**20
TIMEOUT_S = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.sqlite"


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, "gateway.responses"):
        yield


def opened(path: Path) -> tuple[Disk, list[Stored]]:
    disk = Disk(path, ROOM)
    rows = disk.open()
    assert all(0 <= age_s < 60 for _, age_s in rows)
    return disk, [one for one, _ in rows]


def found(path: Path) -> list[Stored]:
    disk, rows = opened(path)
    disk.close()
    return rows


def test_what_was_put_is_there_after_a_restart(path: Path) -> None:
    disk, rows = opened(path)
    assert rows == []
    log = Log(2, (b"event: a\n\n",))
    first, second = stored("a"), stored("b", previous="a", background=True, log=log)
    for one in (first, second, stored("c")):
        disk.put(one)
    disk.delete("c")
    disk.close()
    assert found(path) == [first, second]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_latest_state_counts_and_deleted_text_is_gone(path: Path) -> None:
    disk, _ = opened(path)
    disk.put(stored("a", "a secret of mine"))
    disk.close()
    disk, _ = opened(path)
    disk.put(stored("a", "a"))
    disk.delete("none")
    disk.close()
    assert found(path) == [stored("a", "a")]
    assert b"a secret of mine" not in path.read_bytes()


@pytest.mark.parametrize("broken", ["garbage", "version", "data"])
def test_a_file_that_cannot_be_read_is_left_alone(
    path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    if broken == "garbage":
        path.write_bytes(b"no database" * 1000)
    else:
        assert found(path) == []
        with closing(sqlite3.connect(path)) as connection, connection:
            if broken == "version":
                connection.execute("PRAGMA user_version = 99")
            else:
                connection.execute("INSERT INTO responses VALUES ('a', 0, x'00')")
    before = path.read_bytes()
    disk, rows = opened(path)
    disk.put(stored("a"))
    disk.close()
    assert (rows, path.read_bytes()) == ([], before)
    (record,) = caplog.records
    assert "kept in memory alone" in record.getMessage()


def test_a_full_disk_is_said_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(path, max_bytes=0)
    disk.open()
    disk.put(stored("a", "x" * ROOM))
    disk.close()
    (record,) = caplog.records
    assert "cannot be written" in record.getMessage()
    assert found(path) == []


def test_what_could_not_be_written_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(responses_disk, "RETRY_S", 0.001)
    failures = iter([sqlite3.OperationalError("disk I/O error")] * 3)
    write, written = responses_disk._write, threading.Event()

    def unlucky(
        connection: sqlite3.Connection, changes: Mapping[str, Stored | None], *rest: Any
    ) -> None:
        for failure in failures:
            raise failure
        write(connection, changes, *rest)
        written.set()

    monkeypatch.setattr(responses_disk, "_write", unlucky)
    disk, _ = opened(path)
    disk.put(stored("a"))
    assert written.wait(TIMEOUT_S)
    disk.close()
    assert found(path) == [stored("a")]
    assert len(caplog.records) == 1


def test_what_is_owed_to_a_disk_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = opened(path)
    disk.put(stored("a"))
    disk.close()
    monkeypatch.setattr(responses_disk, "MAX_PENDING", 2)
    disk, _ = opened(path)
    with disk._changed:  # which the writer has to wait for
        for name in "bcde":
            disk.put(stored(name))
    disk.close()
    assert [one.id for one in found(path)] == ["e"]
