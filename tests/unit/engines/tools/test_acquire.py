"""How a model comes together, over a hub that is a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engines import wire
from engines.tools import acquire as module
from engines.tools import hub
from engines.tools.acquire import acquire
from engines.tools.choice import HubFile
from engines.tools.errors import ToolError
from engines.tools.hub import Repository

FILES = {
    "config.json": b"{}",
    "model-1.safetensors": b"one" * 100,
    "model-2.safetensors": b"two" * 100,
    "a/special.json": b"[]",
    "b/special.json": b"[]",
}


class Table:
    """What is in the repository, what was asked of it, and where it breaks."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.commit = "c1"
        self.fetched: list[str] = []
        self.breaks_at: dict[str, int] = {}

    def repository(self, repo: str, revision: str | None) -> Repository:
        files = (
            HubFile(path, len(content), sha256=hashlib.sha256(content).hexdigest())
            for path, content in self.files.items()
        )
        return Repository(repo, self.commit, tuple(files))

    def fetch(
        self, repo: Repository, file: HubFile, into: Path, hear: Callable[[int], None]
    ) -> None:
        self.fetched.append(file.path)
        have = into.stat().st_size if into.exists() else 0
        end = self.breaks_at.get(file.path, file.size)
        with into.open("ab") as stream:
            stream.write(self.files[file.path][have:end])
        hear(end)
        if end < file.size:
            raise ToolError("the line broke")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(hub, "repository", table.repository)
    monkeypatch.setattr(hub, "fetch", table.fetch)
    monkeypatch.setattr(module, "AT_ONCE", 1)
    return table


def run(folder: Path, told: list[tuple[str, int, int]] | None = None) -> dict[str, bool]:
    task = wire.Acquire("maker/it", str(folder / "it"), str(folder / ".it.acquiring"))
    heard = [] if told is None else told
    return acquire(task, lambda *progress: heard.append(progress))


def content(folder: Path) -> dict[str, bytes]:
    target = folder / "it"
    paths = (path for path in target.rglob("*") if path.is_file())
    found = {path.relative_to(target).as_posix(): path.read_bytes() for path in paths}
    del found["model.manifest.json"]
    return found


def test_everything_gets_to_its_place(table: Table, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    assert run(tmp_path, told) == {"already": False}
    assert content(tmp_path) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    assert len(table.fetched) == 4  # one of the two equal files is a copy
    done = [each for stage, *each in told if stage == "downloading"]
    assert done == sorted(done)
    assert done[-1] == [604, 604]
    assert run(tmp_path) == {"already": True}


def test_what_broke_goes_on(table: Table, tmp_path: Path) -> None:
    table.breaks_at["model-2.safetensors"] = 100
    with pytest.raises(ToolError, match="the line broke"):
        run(tmp_path)
    assert not (tmp_path / "it").exists()
    table.breaks_at.clear()
    table.fetched.clear()
    told: list[tuple[str, int, int]] = []
    run(tmp_path, told)
    assert content(tmp_path) == FILES
    assert "model-1.safetensors" not in table.fetched
    assert told[0] == ("asking the hub", 0, 0)
    assert all(done >= 400 for stage, done, _ in told if stage == "downloading")


def test_another_commit_keeps_what_is_the_same(table: Table, tmp_path: Path) -> None:
    table.breaks_at["model-2.safetensors"] = 100
    with pytest.raises(ToolError, match="the line broke"):
        run(tmp_path)
    table.commit = "c2"
    table.files["config.json"] = b'{"new": 1}'
    table.breaks_at.clear()
    table.fetched.clear()
    run(tmp_path)
    assert content(tmp_path) == table.files
    assert "model-1.safetensors" not in table.fetched
    manifest = json.loads((tmp_path / "it" / "model.manifest.json").read_text())
    assert manifest["commit"] == "c2"


def test_an_assembly_that_was_cut_short_goes_on(table: Table, tmp_path: Path) -> None:
    table.breaks_at["b/special.json"] = 0
    del table.files["a/special.json"]
    with pytest.raises(ToolError, match="the line broke"):
        run(tmp_path)
    staged = tmp_path / ".it.acquiring"
    digest = hashlib.sha256(FILES["model-1.safetensors"]).hexdigest()
    (staged / "whole" / digest).rename(staged / "commit-c1" / "model-1.safetensors")
    table.breaks_at.clear()
    table.fetched.clear()
    run(tmp_path)
    assert content(tmp_path) == table.files
    assert table.fetched == ["b/special.json"]


def test_damage_is_thrown_away(table: Table, tmp_path: Path) -> None:
    good = table.repository

    def promises_more(repo: str, revision: str | None) -> Repository:
        wrong = HubFile("config.json", 2, git_id="0" * 40)
        found = good(repo, revision)
        return Repository(repo, "c1", (wrong, *found.files[1:]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "repository", promises_more)
        with pytest.raises(ToolError, match=r"config\.json of maker/it came damaged"):
            run(tmp_path)
    assert not (tmp_path / ".it.acquiring" / "parts" / ("0" * 40)).exists()
    assert not (tmp_path / "it").exists()
