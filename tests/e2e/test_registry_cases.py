"""`check`, start and reload read a registry by the same code, so they say the same of each one."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from gateway.cli import parse
from tests.harness.daemon import Daemon, daemon, environ, registry, scripted, write

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODEL = FIXTURES / "models" / "scripted-hermes"
ENVIRONMENT = {"BUDGET": "80"}
BROKEN = 78
AT_ONCE = 2


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One registry; a `key` says that it is refused because of it."""

    id: str
    yaml: str
    key: str | None = None
    bytes: int | None = None
    clamped: bool = False
    warns: str | None = None
    refused: dict[str, tuple[int, str]] = {}
    loaded: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.yaml.replace("$MODEL", str(MODEL))


def _budgets() -> Iterator[Case]:
    for given in yaml.safe_load((FIXTURES / "registry" / "budgets.yaml").read_text()):
        written, size = given["written"], given.get("bytes")
        text = (
            f"manager:\n  memory_budget_gb: {written}\nmodels:\n  - {{name: a, engine: scripted}}\n"
        )
        yield Case(f"budget {written}", text, None if size else "memory_budget_gb", size)


def _cases() -> Iterator[Case]:
    documents = yaml.safe_load((FIXTURES / "registry" / "cases.yaml").read_text())
    yield from msgspec.convert(documents, list[Case])
    yield from _budgets()


CASES = list(_cases())
STARTED = [case for case in CASES if case.key is None and not case.id.startswith("budget ")]
REFUSED = [case for case in CASES if case.key is not None]


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for case in CASES:
        write(case.text, tmp_path)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            arguments = parse(["check", str(tmp_path / "registry.yaml")])
            code = arguments.run(arguments)
        assert code == (0 if case.key is None else 1), case.id
        _assert_said(case, said.getvalue())


def _assert_said(case: Case, said: str) -> None:
    if case.key is not None:
        assert re.search(rf"error: .*{re.escape(case.key)}", said), f"{case.id}: {said}"
    if case.warns is not None:
        assert re.search(rf"warning: .*{case.warns}", said), f"{case.id}: {said}"


# --- start ----------------------------------------------------------------------------------------


STARTS = """
import sys
from gateway.cli import parse
for config in sys.argv[1:]:
    args = parse(["serve", "--port", "0", "--config", config])
    print(args.run(args), flush=True)
    print("-- next", file=sys.stderr, flush=True)
"""


def test_refused_at_start(tmp_path: Path) -> None:
    """By one process for all of them: its imports are most of what a start costs."""
    folders = [tmp_path / str(number) for number in range(len(REFUSED))]
    for case, folder in zip(REFUSED, folders, strict=True):
        write(case.text, folder)
    ended = subprocess.run(
        [sys.executable, "-c", STARTS, *(str(folder / "registry.yaml") for folder in folders)],
        env=environ(tmp_path, ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.split() == [str(BROKEN)] * len(REFUSED)
    assert "Traceback" not in ended.stderr
    for case, said in zip(REFUSED, ended.stderr.split("-- next\n"), strict=False):
        _assert_said(case, said)


def test_accepted_at_start(tmp_path: Path) -> None:
    def start(number: int) -> None:
        case, folder = STARTED[number], tmp_path / str(number)
        with daemon(case.text, folder, ENVIRONMENT) as gateway:
            _assert_served(case, gateway)
            _assert_said(case, gateway.log)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(start, range(len(STARTED))))


def _assert_served(case: Case, gateway: Daemon) -> None:
    with httpx.Client(base_url=gateway.url, timeout=30, trust_env=False) as client:
        assert client.get("/health").status_code == 200
        memory = client.get("/v1/status").json()["memory"]
        assert memory["budget_bytes"] > 0
        if case.bytes is not None:
            assert memory["budget_bytes"] == case.bytes, case.id
        assert (memory["budget_bytes"] < memory["configured_budget_bytes"]) == case.clamped
        for model, (status, code) in case.refused.items():
            body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
            answer = client.post("/v1/chat/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert answer.headers["x-should-retry"] == "false"
        for model in case.loaded:
            answer = client.post(f"/v1/models/{model}/load?wait=true")
            assert answer.json()["state"] == "ready", f"{case.id}: {answer.text}"


# --- reload ---------------------------------------------------------------------------------------


def test_reload(tmp_path: Path) -> None:
    """Each file after another in one gateway: a refused one leaves what was there before."""
    with (
        daemon(registry(scripted("first")), tmp_path, ENVIRONMENT) as gateway,
        httpx.Client(base_url=gateway.url, timeout=30, trust_env=False) as client,
    ):
        for case in CASES:
            before = client.get("/v1/status").json()
            write(case.text, tmp_path)
            answer = client.post("/admin/reload")
            assert answer.status_code == (200 if case.key is None else 400), case.id
            _assert_said(case, "\n".join(map(_line, answer.json()["problems"])))
            if case.key is None:
                _assert_served(case, gateway)
            else:
                after = client.get("/v1/status").json()
                assert after["memory"]["budget_bytes"] == before["memory"]["budget_bytes"]
                names = [[model["name"] for model in view["models"]] for view in (before, after)]
                assert names[0] == names[1], case.id


def _line(problem: dict[str, Any]) -> str:
    return f"{problem['level']}: {problem['key']}: {problem['message']}"
