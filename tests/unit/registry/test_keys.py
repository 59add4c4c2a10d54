"""API keys of a registry: what is wrong with them is told, what they are is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.registry.diff import compare
from gateway.registry.load import Loaded, parse
from gateway.registry.schema import Server
from gateway.registry.settings import server_settings

MODELS = "\nmodels: [{name: a, engine: scripted}]"


def parsed(server: str, base: Path = Path("/nowhere")) -> Loaded:
    environ = {"KEY": "sk-from-env", "HOME": str(base)}
    return parse(f"server: {server}{MODELS}".encode(), file="r.yaml", base=base, environ=environ)


def keys(loaded: Loaded) -> dict[str, str | None]:
    assert loaded.registry is not None, loaded.problems
    return {key.name: key.key for key in loaded.registry.server.api_keys}


def test_keys_from_the_environment_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text("sk-from-file\n")
    loaded = parsed(
        "{api_keys: [{name: e, key: '${env:KEY}'}, {name: f, key_file: key},"
        " {name: h, key_file: ~/key2}]}",
        tmp_path,
    )
    assert [problem.key for problem in loaded.errors] == ["server.api_keys[2].key_file"]
    loaded = parsed(
        "{api_keys: [{name: e, key: '${env:KEY}'}, {name: f, key_file: key}]}", tmp_path
    )
    assert keys(loaded) == {"e": "sk-from-env", "f": "sk-from-file"}


@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ("{name: a}", "[0]", "needs one of key and key_file"),
        ("{name: a, key: x, key_file: y}", "[0]", "needs one of key and key_file"),
        ("{name: a, key: x}, {name: a, key: y}", "[1].name", "name of another key"),
        ("{name: a, key: x}, {name: b, key: x}", "[1]", "the same key as 'a'"),
        ("{name: a, key: x, rights: [infr]}", "[0].rights[0]", 'did you mean "infer"'),
        ("{key: x}", "[0].name", "missing"),
        ("{name: a, key_file: /}", "[0].key_file", "is not a file"),
    ],
)
def test_what_is_wrong_is_told(entry: str, key: str, message: str) -> None:
    (error,) = parsed(f"{{api_keys: [{entry}]}}").errors
    assert error.key == f"server.api_keys{key}"
    assert message in error.message


@pytest.mark.parametrize(
    "server",
    [
        "{api_keys: SECRET123}",
        "{api_keys: [SECRET123]}",
        "{api_keys: [{name: a, key: SECRET 123}]}",
        "{api_keys: [{name: a, key: [SECRET123]}]}",
        "{api_keys: [{name: a, key: x, rights: SECRET123}]}",
    ],
)
def test_no_problem_shows_a_key(server: str) -> None:
    errors = parsed(server).errors
    assert errors
    assert "SECRET" not in "".join(map(str, errors))


@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [
        (0o640, "sk-1", "chmod 600"),
        (0o604, "sk-1", "chmod 600"),
        (0o600, "", "one key"),
        (0o600, "two words", "one key"),
        (0o600, "x" * 513, "one key"),
    ],
)
def test_key_files_that_are_refused(tmp_path: Path, mode: int, text: str, message: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    os.chmod(file, mode)
    (error,) = parsed("{api_keys: [{name: a, key_file: key}]}", tmp_path).errors
    assert message in error.message


def test_origins_are_origins() -> None:
    good = "{cors_origins: ['https://chat.example', 'http://localhost:3000', '*']}"
    assert parsed(good).errors == ()
    for bad in ("chat.example", "https://chat.example/path", "null", "http://["):
        (error,) = parsed(f"{{cors_origins: ['{bad}']}}").errors
        assert error.key == "server.cors_origins[0]"


def test_a_plan_names_keys_and_shows_none() -> None:
    old = parsed("{api_keys: [{name: a, key: sk-1}, {name: b, key: sk-2}]}")
    new = parsed("{api_keys: [{name: a, key: sk-9}, {name: c, key: sk-3}]}")
    plan = compare(old, new)
    assert [(f.key, f.reload, f.old, f.new) for f in plan.server] == [
        ("api_keys.a", "live", "set", "changed"),
        ("api_keys.b", "live", "set", None),
        ("api_keys.c", "live", None, "set"),
    ]
    assert "sk-" not in f"{plan}{plan.to_builtins()}"


def test_lists_come_from_variables_and_keys_do_not() -> None:
    environ = {"MLX_GATEWAY_HOSTS": "ai.lan, other", "MLX_GATEWAY_API_KEYS": "sk-1"}
    server, problems = server_settings(Server(), flags={}, environ=environ)
    assert (server.hosts, server.api_keys, problems) == (("ai.lan", "other"), (), ())
    environ = {"MLX_GATEWAY_MEDIA_ROOTS": "/srv/a,/srv/b"}
    server, problems = server_settings(Server(), flags={}, environ=environ)
    assert (server.media_roots, problems) == (("/srv/a", "/srv/b"), ())
