"""Folders of prompts on disk: one for each model and its files, counted and cleared without it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from engines import wire
from gateway.registry.find import Model
from gateway.registry.schema import Entry
from gateway.registry.sizes import Size
from gateway.supervisor import prompt_folders
from gateway.supervisor.prompt_folders import (
    STRAY_S,
    Files,
    clear,
    count,
    disk_cache,
    folder_of,
    sweep,
)

SIZE = Size(weights_bytes=1, kind="text", fingerprint="abc")
ROOT = Path("/cache/prompts")


def model(name: str = "m", fingerprint: str = "abc", **keys: object) -> Model:
    entry = msgspec.convert({"name": name, "path": "/m", "kind": "text", **keys}, Entry)
    return Model(entry=entry, size=msgspec.structs.replace(SIZE, fingerprint=fingerprint))


def test_each_model_and_each_version_of_its_files_has_its_own() -> None:
    folders = {
        folder_of(ROOT, model()),
        folder_of(ROOT, model("n")),
        folder_of(ROOT, model(fingerprint="abd")),
    }
    assert len(folders) == 3
    assert all(folder is not None and folder.parent == ROOT for folder in folders)
    assert folder_of(ROOT, model("variant", of="m")) == folder_of(ROOT, model())


def test_who_has_none() -> None:
    assert folder_of(None, model()) is None
    assert folder_of(ROOT, model(fingerprint="")) is None
    assert folder_of(ROOT, model(engine="scripted")) is None
    assert disk_cache(ROOT, model()) is None
    assert disk_cache(None, model(prompt_cache_disk_gb=1)) is None


def test_what_the_engine_is_told() -> None:
    told = model(prompt_cache_disk_gb=0.5, prompt_cache_disk_days=2)
    assert disk_cache(ROOT, told) == wire.DiskCache(
        str(folder_of(ROOT, told)), "abc", 2**29, 2 * 86400
    )


def test_count_and_clear(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    assert count(folder) == clear(folder) == count(None) == clear(None) == Files()
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(b"12345")
    (folder / "b.safetensors").write_bytes(b"123")
    (folder / "c.1.tmp").write_bytes(b"1")
    assert count(folder) == Files(2, 8)
    assert clear(folder) == Files(2, 8)
    assert not folder.exists()


def test_the_sweep_leaves_what_is_young(tmp_path: Path) -> None:
    names = ("kept", "expired", "old", "young")
    files = {name: tmp_path / name / "a.safetensors" for name in names}
    for path in files.values():
        path.parent.mkdir()
        path.write_bytes(b"1")
        os.utime(path, (1000, 1000))
    os.utime(files["young"], (2000, 2000))
    ages_s = {tmp_path / "kept": STRAY_S + 600, tmp_path / "expired": 400.0}
    assert sweep(tmp_path, ages_s, now=1500 + STRAY_S) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "young"}
    assert sweep(tmp_path / "nowhere", {}) == 0


def test_a_file_that_goes_while_they_are_counted_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"123")
    with os.scandir(tmp_path) as listing:
        found = list(listing)
    os.unlink(tmp_path / "a.safetensors")
    monkeypatch.setattr(prompt_folders, "_files", lambda folder: iter(found))
    assert count(tmp_path) == Files(1, 3)
