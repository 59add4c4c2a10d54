"""`check`, the example it is shown with, and that the schema says everything about every key."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Meta

from gateway.cli import check
from gateway.registry import schema
from gateway.registry.load import load
from gateway.registry.walk import FILLER

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "registry.example.yaml"
PARTS: tuple[type[msgspec.Struct], ...] = (
    schema.Registry,
    schema.Manager,
    schema.ContentionPolicy,
    schema.Server,
    schema.ApiKey,
    schema.Defaults,
    schema.Entry,
    schema.Scripted,
    schema.ExitStep,
)


def keys() -> Iterator[tuple[type[msgspec.Struct], Any]]:
    for part in PARTS:
        for info in msgspec.structs.fields(part):
            yield part, info


def verb(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    return check.run(parser.parse_args(["check", *argv]))


def test_the_example_loads_and_has_every_key() -> None:
    loaded = load(EXAMPLE, environ={"HOME": "/nowhere"})
    assert loaded.errors == ()
    text = EXAMPLE.read_text()
    missing = {info.name for _, info in keys() if not re.search(rf"\b{info.name}:", text)}
    assert missing == set()


def test_every_key_has_a_description_and_a_price() -> None:
    for part, info in keys():
        metas = [meta for meta in info.type.__metadata__ if isinstance(meta, Meta)]
        assert any(meta.description for meta in metas), info.name
        assert schema.reload_of(part, info.name) in ("restart", "live")


def test_every_default_is_a_value_the_key_takes() -> None:
    """msgspec does not check defaults, and finds a constraint on the wrong type only in use."""
    for _, info in keys():
        if info.default is not msgspec.NODEFAULT:
            assert msgspec.convert(msgspec.to_builtins(info.default), info.type) == info.default


def test_required_keys_are_text() -> None:
    """What is missing is filled with an empty text for as long as the walk goes on."""
    required = {(part, info.name) for part, info in keys() if info.required}
    assert required == {
        (schema.ApiKey, "name"),
        (schema.Entry, "name"),
        (schema.ExitStep, "exit"),
    }
    assert FILLER == ""


def test_check_of_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "manager: {memory_budget_gb: 4}\nmodels:\n"
        "  - {name: a, engine: scripted, scripted: {size_gb: 1.5}}\n  - {name: b, of: a}\n"
    )
    assert verb(str(file), "--strict") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME  KIND  NEEDS    STATE",
        "a     text  1.5 GiB  available",
        "b     text  1.5 GiB  variant of a",
        "memory budget: 4.0 GiB (4294967296 bytes)",
    ]


def test_check_with_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("models:\n  - {name: a, path: nothing}\n")
    assert verb(str(file)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"warning: {file}:2: models[0].path: unavailable: no such folder: {tmp_path}/nothing"
    )
    assert lines[2].split() == ["a", "text", "?", "unavailable"]
    assert lines[3].startswith("memory budget: ")
    assert verb(str(file), "--strict") == 2


def test_check_with_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("model: []\nserver: {prt: 1}\n")
    assert verb(str(file), "--strict") == 1
    assert capsys.readouterr().out.splitlines() == [
        f'error: {file}:1: model: unknown key; did you mean "models"?',
        f'error: {file}:2: server.prt: unknown key; did you mean "port"?',
        "2 errors; the file cannot be served",
    ]


def test_check_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("manager: {memory_budget_gb: 4}\nmodels:\n  - {name: a, path: nothing}\n")
    assert verb(str(file), "--json") == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["budget_bytes"] == 4 * 2**30
    assert report["models"][0]["unavailable"].startswith("no such folder")
    assert report["problems"][0]["line"] == 3
    file.write_text("[")
    assert verb(str(file), "--json") == 1
    assert msgspec.json.decode(capsys.readouterr().out)["ok"] is False


def test_check_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("MLX_GATEWAY_CONFIG", raising=False)
    assert verb() == 1
    assert "no registry: name a file" in capsys.readouterr().err
    (tmp_path / "registry.yaml").write_text("models: [{name: a, engine: scripted}]\n")
    assert verb() == 0
