"""How a start ends that cannot succeed, and one that has nothing to serve."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.harness.daemon import command, daemon, environ, registry, scripted, write

pytestmark = pytest.mark.anyio

TIMEOUT_S = 30
TAKEN, BROKEN = 75, 78

MODELS = registry(scripted("model"))


def serve(
    folder: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A start that has to end by itself."""
    return subprocess.run(
        [sys.executable, *command(folder, *flags)],
        env=environ(folder, environment or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


async def test_one_gateway_for_each_state_directory(tmp_path: Path) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        second = serve(tmp_path)
        assert second.returncode == TAKEN
        assert f"another mlx-gateway runs with the state in {tmp_path}" in second.stderr
        assert "MLX_GATEWAY_STATE_DIR" in second.stderr
        assert (await gateway.chat("model")).status_code == 200  # the first one is as before
        with daemon(MODELS, tmp_path / "elsewhere") as other:
            assert (await other.get("/livez")).status_code == 200


def test_a_taken_port_names_its_owner_and_the_flag(tmp_path: Path) -> None:
    write(MODELS, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ended = serve(tmp_path, "--port", str(port))
        assert ended.returncode == TAKEN
        assert f"port {port} on 127.0.0.1 is taken by" in ended.stderr
        assert f"(pid {os.getpid()})" in ended.stderr
        assert "--port" in ended.stderr
    assert ended.stdout == ""


def test_a_broken_registry_is_refused_with_every_problem(tmp_path: Path) -> None:
    document = registry(
        scripted("model", tokens_per_s=-1), scripted("model"), {"name": "nothing"}, budget_gb=-5
    )
    write({**document, "modles": []}, tmp_path)
    ended = serve(tmp_path)
    assert ended.returncode == BROKEN
    problems = ended.stderr.splitlines()
    file = str(tmp_path / "registry.yaml")
    assert all(problem.startswith(f"error: {file}:") for problem in problems), problems
    for words in ("memory_budget_gb", "tokens_per_s", "modles", "models[1].name", "models[2]"):
        assert sum(words in problem for problem in problems) == 1, (words, problems)
    assert not (tmp_path / "state").exists()


def test_a_registry_that_was_asked_for_and_is_not_there(tmp_path: Path) -> None:
    ended = serve(tmp_path)
    assert ended.returncode == BROKEN
    assert str(tmp_path / "registry.yaml") in ended.stderr


def test_without_a_registry_it_serves_and_says_how_to_add_one(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "--port", "0"],
        cwd=folder,
        env=environ(tmp_path, {"XDG_CONFIG_HOME": str(folder)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        answer = httpx.get(f"{url}/v1/models", trust_env=False)
        process.terminate()
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (answer.status_code, answer.json()["data"]) == (200, [])
    assert process.returncode == 0
    assert "No registry found" in said
    assert str(folder / "mlx-gateway" / "registry.yaml") in said


@pytest.mark.parametrize(
    ("flags", "environment", "names"),
    [
        (["--port", "70000"], {}, "--port"),
        ([], {"MLX_GATEWAY_DRAIN_S": "soon"}, "MLX_GATEWAY_DRAIN_S"),
        (["--log-level", "loud"], {}, "--log-level"),
    ],
)
def test_a_wrong_setting_is_named(
    tmp_path: Path, flags: list[str], environment: dict[str, str], names: str
) -> None:
    write(MODELS, tmp_path)
    ended = serve(tmp_path, *flags, environment=environment)
    assert ended.returncode == BROKEN
    assert names in ended.stderr
