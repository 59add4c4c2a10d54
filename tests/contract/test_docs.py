"""The documentation's examples that are marked to be run are run, against one gateway.

Its models are scripted and have the names that the pages use; its address replaces theirs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.daemon import Daemon, daemon, registry, scripted
from tests.harness.pages import ADDRESS, Example, examples

TIMEOUT_S = 60.0

CURL = (
    'curl() { command curl --fail-with-body --silent --show-error --noproxy "*" "$@" && echo; }\n'
)
"""An answer that is an error fails the example, as nobody is there to read it."""

DOCUMENT = registry(
    scripted("small", aliases=["gpt-4o-mini"]),
    scripted("pretend"),
    scripted("vectors", kind="embedding", vector_dim=8),
    scripted("ranker", kind="rerank"),
    scripted("ears", kind="transcription"),
    scripted("voice", kind="speech"),
    scripted("seeing", kind="vision"),
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(DOCUMENT, tmp_path_factory.mktemp("docs")) as running:
        yield running


def ids(example: Example) -> str:
    return example.place


@pytest.mark.parametrize("example", examples("sh", "run"), ids=ids)
def test_commands(example: Example, gateway: Daemon, tmp_path: Path) -> None:
    script = "set -euo pipefail\n" + CURL + example.text.replace(ADDRESS, gateway.url)
    told = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=tmp_path,
        env=os.environ,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.strip() or list(tmp_path.iterdir()), "there was an answer"


@pytest.mark.parametrize("example", examples("python", "run"), ids=ids)
def test_programs(
    example: Example,
    gateway: Daemon,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    code = compile(example.text.replace(ADDRESS, gateway.url), example.place, "exec")
    spoken: dict[str, object] = {"__name__": "example"}
    exec(code, spoken)
    spoken["client"].close()  # type: ignore[attr-defined]  # of either SDK
    assert capsys.readouterr().out.strip()
