"""The verbs of an operator against a gateway with scripted models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import exits
from gateway.cli.completion import SCRIPTS
from tests.harness.daemon import Daemon, daemon, registry, reply, script, scripted

TIMEOUT_S = 60

KEYS = [
    {"name": "user", "key": "user-key", "rights": ["infer"]},
    {"name": "root", "key": "root-key", "rights": ["infer", "manage", "admin"]},
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(
        scripted("a", size_gb=1, aliases=["alias-of-a"], description="evil \x1b[31m text"),
        scripted("slow", size_gb=1, load_s=0.5, deltas=3),
        scripted("broken", fail_loads=1000),
        scripted("huge", size_gb=100),
        server={"api_keys": KEYS},
    )
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


def run(
    gateway: Daemon, *arguments: str, key: str = "root-key", stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if "MLX_GATEWAY_" not in k}
    environment |= {"MLX_GATEWAY_STATE_DIR": str(gateway.folder / "state"), "MLX_GATEWAY_KEY": key}
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
    )


def test_a_model_is_loaded_kept_looked_at_and_let_go(gateway: Daemon) -> None:
    loaded = run(gateway, "load", "slow")
    assert loaded.stdout == "slow is ready\n", loaded.stderr
    assert "load slow" in loaded.stderr
    pinned = run(gateway, "pin", "slow", "--for", "2h")
    assert pinned.stdout == "slow is ready, pinned\n"
    shown = run(gateway, "ps").stdout.splitlines()
    assert shown[0].split()[:3] == ["NAME", "KIND", "STATE"]
    assert any(line.split()[:3] == ["slow", "text", "ready"] and "pinned" in line for line in shown)
    assert shown[-1].endswith("reserved")
    assert run(gateway, "unpin", "slow").stdout == "slow is ready\n"
    assert run(gateway, "unload", "slow").returncode == exits.DONE
    gone = json.loads(run(gateway, "ps", "--json").stdout)
    slow = next(model for model in gone["models"] if model["name"] == "slow")
    assert slow["state"] in ("draining", "unloading", "unloaded")


def test_ls_shows_every_model_and_no_escape_of_theirs(gateway: Daemon) -> None:
    listed = run(gateway, "ls").stdout
    assert "alias-of-a" in listed
    assert "\x1b" not in listed
    assert "100.00 GiB" in listed  # what a model needs is told before it is loaded
    names = [model["id"] for model in json.loads(run(gateway, "ls", "--json").stdout)]
    assert names == ["a", "slow", "broken", "huge"]


def test_explain_says_a_sentence_and_whether_it_would_work(gateway: Daemon) -> None:
    fine = run(gateway, "explain", "a")
    assert fine.returncode == exits.DONE
    assert "'a'" in fine.stdout
    huge = run(gateway, "explain", "huge")
    assert huge.returncode == exits.FAILED
    assert "model_too_large" in huge.stdout
    assert json.loads(run(gateway, "explain", "huge", "--json").stdout)["refusal"]["status"] == 400


def test_reload_says_what_came_of_it(gateway: Daemon) -> None:
    assert run(gateway, "reload").stdout.splitlines()[0] == "unchanged"


@pytest.mark.parametrize(
    ("arguments", "key", "code", "told"),
    [
        (("load", "nobody"), "root-key", exits.NOT_FOUND, "nobody"),
        (("load", "broken"), "root-key", exits.BUSY, "broken"),
        (("load", "huge"), "root-key", exits.FAILED, "model_too_large"),
        (("load", "a"), "user-key", exits.REFUSED, "manage"),
        (("ps",), "wrong-key", exits.REFUSED, "MLX_GATEWAY_KEY"),
        (("ps", "--url", "http://127.0.0.1:9"), "", exits.UNREACHABLE, "nothing answers"),
        (("pin", "a", "--for", "2w"), "root-key", exits.USAGE, "is no time"),
        (("no-such-verb",), "", exits.USAGE, "invalid choice"),
    ],
)
def test_exit_codes(
    gateway: Daemon, arguments: tuple[str, ...], key: str, code: int, told: str
) -> None:
    done = run(gateway, *arguments, key=key)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr


def test_chat_prints_the_answer_alone(gateway: Daemon) -> None:
    asked = run(gateway, "chat", "slow", "-m", "hello", key="user-key")
    assert (asked.returncode, asked.stdout) == (exits.DONE, f"{reply(3)}\n")
    piped = run(gateway, "chat", "a", stdin=script("a\x1b[2Jb"))
    assert piped.stdout == "a\N{REPLACEMENT CHARACTER}[2Jb\n"
    refused = run(gateway, "chat", "huge", "-m", "hello")
    assert (refused.returncode, refused.stdout) == (exits.FAILED, "")
    assert "model_too_large" in refused.stderr


def test_a_stream_that_fails_is_told(gateway: Daemon) -> None:
    done = run(gateway, "chat", "a", "-m", script("some ", {"raise": "it broke"}))
    assert done.returncode == exits.FAILED
    assert "it broke" in done.stderr


def test_bash_completes_verbs_and_models(gateway: Daemon, tmp_path: Path) -> None:
    here = tmp_path / "mlx-gateway"
    here.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gateway "$@"\n')
    here.chmod(0o755)
    program = f"""
PATH={tmp_path}:$PATH
{SCRIPTS["bash"]}
COMP_WORDS=(mlx-gateway unload s); COMP_CWORD=2
_mlx_gateway; echo "${{COMPREPLY[@]}}"
COMP_WORDS=(mlx-gateway unl); COMP_CWORD=1
_mlx_gateway; echo "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "MLX_GATEWAY_STATE_DIR": str(gateway.folder / "state")}
    environment["MLX_GATEWAY_KEY"] = "root-key"
    done = subprocess.run(
        ["bash", "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.splitlines() == ["slow", "unload"]
