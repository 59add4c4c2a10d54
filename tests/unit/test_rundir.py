"""The run directory: one owner, whole files, nothing left at the end."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from gateway.rundir import AlreadyRunning, RunDir, Unwritable


def test_a_second_gateway_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    first = RunDir(tmp_path / "run")
    with pytest.raises(AlreadyRunning, match=f"state in {tmp_path}; stop it, or give"):
        RunDir(tmp_path / "run")
    first.close()
    RunDir(tmp_path / "run").close()


def test_a_file_system_without_locks_is_not_taken_for_another_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match="No locks available"):
        RunDir(tmp_path / "run")


def test_it_is_its_owners_alone(tmp_path: Path) -> None:
    RunDir(tmp_path / "run").close()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_engines_are_remembered_until_an_orderly_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.engines() == []
    run.write_engines([(12, 1700000000.25), (13, 0.5)])
    run.write_address("http://127.0.0.1:8000")
    assert run.engines() == [(12, 1700000000.25), (13, 0.5)]
    assert (tmp_path / "address").read_text() == "http://127.0.0.1:8000\n"
    run.clear()
    run.clear()
    assert run.engines() == []
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    run.close()


@pytest.mark.parametrize("text", ["", "[[1", "{}", "[1]", '[["x", 1]]', "[[1]]", "null", "\x00"])
def test_a_file_that_makes_no_sense_names_no_engine(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    (tmp_path / "engines.json").write_text(text)
    assert run.engines() == []
    run.close()


def test_what_cannot_be_written_is_said_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    run.write_engines([(12, 0.5)])
    write = Path.write_text

    def fills_up(path: Path, text: str) -> int:
        write(path, text[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fills_up)
    with pytest.raises(OSError, match="No space left"):
        run.write_engines([(12, 0.5), (13, 0.5)])
    with pytest.raises(Unwritable, match=f"{tmp_path} cannot be written .No space left.*; free"):
        run.write_address("http://127.0.0.1:8000")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engines.json", "lock"]
    assert run.engines() == [(12, 0.5)]
    run.close()


def test_an_orderly_end_where_nothing_can_be_removed_is_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    run = RunDir(tmp_path)
    run.write_engines([(12, 0.5)])
    monkeypatch.setattr(Path, "unlink", read_only)
    run.clear()
    assert run.engines() == [(12, 0.5)]
    run.close()
