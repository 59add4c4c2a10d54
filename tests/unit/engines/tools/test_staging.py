"""Under the final name there is the whole model or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engines.tools import manifest
from engines.tools.errors import ToolError
from engines.tools.staging import SPARE_BYTES, check_room, check_target, put, staging


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A finished model in a staging folder."""
    folder = tmp_path / "staging" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_model_is_moved_and_the_rest_removed(tmp_path: Path, made: Path) -> None:
    target = tmp_path / "new" / "it"
    with staging(made.parent, target):
        put(made, made.parent, target)
    assert [path.name for path in target.iterdir()] == ["config.json"]
    assert not made.parent.exists()


def test_an_empty_folder_is_as_good_as_none(tmp_path: Path, made: Path) -> None:
    target = tmp_path / "it"
    target.mkdir()
    check_target(target)
    put(made, made.parent, target)
    assert (target / "config.json").exists()


def test_nothing_is_replaced(tmp_path: Path, made: Path) -> None:
    target = tmp_path / "it"
    target.mkdir()
    (target / "mine").touch()
    with pytest.raises(ToolError, match="is there already"):
        check_target(target)
    with pytest.raises(ToolError, match="is there already"):
        put(made, made.parent, target)
    assert made.exists()
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ToolError, match="is there already"):
        check_target(dangling)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder, target = tmp_path / "staging", tmp_path / "it"
    with (
        staging(folder, target),
        pytest.raises(ToolError, match="another process is at work"),
        staging(folder, target),
    ):
        pytest.fail("it was held")
    with staging(folder, target):
        assert folder.is_dir()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ToolError, match="cannot be made"),
        staging(tmp_path / "file" / "staging", tmp_path / "it"),
    ):
        pytest.fail("there is no such folder")


def test_room_is_looked_for_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(path: Any) -> _Usage:
        return _Usage(10**12, 0, SPARE_BYTES + 1000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    check_room(tmp_path, 1000)
    with pytest.raises(ToolError, match="make room"):
        check_room(tmp_path, 1001)


def test_a_manifest_names_every_file_but_itself(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "a.wav").write_bytes(b"abc")
    (tmp_path / "config.json").write_bytes(b"{}")
    told: list[tuple[str, int, int]] = []
    files = manifest.files_in(tmp_path, lambda *progress: told.append(progress))
    written = manifest.write(tmp_path, {"made_by": "test", "files": files})
    assert manifest.read(tmp_path) == written
    assert [(file["path"], file["size"]) for file in files] == [
        ("config.json", 2),
        ("voices/a.wav", 3),
    ]
    assert files[1]["sha256"].startswith("ba7816bf")
    assert told == [("checksums", 2, 5), ("checksums", 5, 5)]
    assert len(manifest.files_in(tmp_path, lambda *progress: None)) == 2


@pytest.mark.parametrize("text", [None, "", "{", "[]", "\xff"])
def test_a_manifest_that_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "model.manifest.json").write_text(text, encoding="latin-1")
    assert manifest.read(tmp_path) is None
