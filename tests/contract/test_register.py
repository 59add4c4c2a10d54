"""`mlx-gateway model register` on real files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import exits

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
TIMEOUT_S = 60

REGISTRY = """\
# mine
models:
  - name: one   # the first
    engine: scripted
"""


def register(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "model", "register", "--config", str(config)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "registry.yaml"
    path.write_text(REGISTRY)
    path.chmod(0o640)
    return path


PLACE = ("two", "--path", str(MODELS / "random-nano"))


def test_an_entry_is_added_after_it_was_shown(config: Path) -> None:
    dry = register(config, *PLACE, "--dry-run")
    assert "+  - name: two" in dry.stdout
    assert config.read_text() == REGISTRY
    done = register(config, *PLACE, "--alias", "zwei", "--pin", "--yes")
    assert done.returncode == exits.DONE, done.stderr
    expected = f"  - name: two\n    path: {MODELS / 'random-nano'}\n"
    assert config.read_text() == REGISTRY + expected + '    aliases: ["zwei"]\n    pin: true\n'
    assert config.stat().st_mode & 0o777 == 0o640


def test_a_new_registry_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "registry.yaml"
    assert register(path, *PLACE, "--yes").returncode == exits.DONE
    assert path.read_text().startswith("models:\n  - name: two\n")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "arguments", "code", "told"),
    [
        (REGISTRY, ("one", "--path", "/x", "--yes"), exits.FAILED, "would be broken"),
        ("mdels: []\n", (*PLACE, "--yes"), exits.FAILED, "is broken already"),
        (REGISTRY, PLACE, exits.USAGE, "say --yes"),
        (REGISTRY, ("two",), exits.USAGE, "one of the arguments --path --model is required"),
    ],
)
def test_a_refusal_changes_nothing(
    config: Path, text: str, arguments: tuple[str, ...], code: int, told: str
) -> None:
    config.write_text(text)
    done = register(config, *arguments)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert config.read_text() == text
