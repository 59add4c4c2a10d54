"""`mlx-gateway model qualify` against a gateway with scripted models."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import exits
from tests.harness.daemon import Daemon, daemon, registry, script, scripted

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(scripted("org/m", aliases=["short"]), scripted("failing", fail_loads=1000))
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


def qualify(
    gateway: Daemon, name: str, workload: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if "MLX_GATEWAY_" not in k}
    environment["MLX_GATEWAY_STATE_DIR"] = str(gateway.folder / "state")
    command = [sys.executable, "-m", "gateway", "model", "qualify", name, "--workload"]
    return subprocess.run(
        [*command, str(workload), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
    )


def workload(folder: Path, *expected: str) -> Path:
    """One case for each pattern that the answer has to have; it is always `a b`."""
    cases = [
        {
            "id": f"case-{number}",
            "messages": [{"role": "user", "content": script("a ", "b")}],
            "checks": {"required_regex": pattern},
        }
        for number, pattern in enumerate(expected)
    ]
    path = folder / "workload.json"
    path.write_text(json.dumps({"name": "w", "cases": cases}))
    return path


def evidence(gateway: Daemon, prefix: str) -> list[dict[str, Any]]:
    folder = gateway.folder / "state" / "evidence"
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{prefix}*.json"))]


def test_evidence_of_what_passed_is_kept(gateway: Daemon, tmp_path: Path) -> None:
    path = workload(tmp_path, "a", "^a b$")
    done = qualify(gateway, "short", path, "--repetitions", "2")
    assert done.returncode == exits.DONE, done.stderr
    assert done.stdout.splitlines()[-1] == "short: passed"
    (kept,) = evidence(gateway, "short")
    assert kept["passed"] is True
    assert kept["workload_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (kept["model"]["name"], kept["model"]["entry"]["engine"]) == ("org/m", "scripted")
    assert kept["source"]["fingerprint"]
    assert kept["source"]["server_version"]
    answers = [answer for case in kept["cases"] for answer in case["answers"]]
    assert [answer["passed"] for answer in answers] == [True] * 4
    assert {answer["sha256"] for answer in answers} == {hashlib.sha256(b"a b").hexdigest()}
    assert not any("text" in answer for answer in answers)
    (file,) = (gateway.folder / "state" / "evidence").glob("short*.json")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_failed_check_is_evidence_too(gateway: Daemon, tmp_path: Path) -> None:
    output = tmp_path / "evidence.json"
    done = qualify(
        gateway, "org/m", workload(tmp_path, "a", "z"), "--output", str(output), "--json"
    )
    assert done.returncode == exits.FAILED
    kept = json.loads(output.read_text())
    assert json.loads(done.stdout) == kept
    assert kept["passed"] is False
    assert [case["answers"][0]["problems"] for case in kept["cases"]] == [[], ["lacks 'z'"]]


def test_a_model_that_does_not_load_has_failed(gateway: Daemon, tmp_path: Path) -> None:
    done = qualify(gateway, "failing", workload(tmp_path, "a"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (exits.FAILED, "failing: failed")
    assert evidence(gateway, "failing")[0]["passed"] is False


@pytest.mark.parametrize(
    ("name", "flags", "text", "code", "told"),
    [
        ("nobody", (), None, exits.NOT_FOUND, "nobody"),
        ("org/m", ("--url", "http://127.0.0.1:9"), None, exits.UNREACHABLE, "nothing answers"),
        ("org/m", (), "{}", exits.USAGE, "at least one case"),
    ],
)
def test_exit_codes(
    *,
    gateway: Daemon,
    tmp_path: Path,
    name: str,
    flags: tuple[str, ...],
    text: str | None,
    code: int,
    told: str,
) -> None:
    path = workload(tmp_path, "a")
    if text is not None:
        path.write_text(text)
    done = qualify(gateway, name, path, *flags)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
