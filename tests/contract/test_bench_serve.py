"""`mlx-gateway bench serve` against a gateway with scripted models."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, registry, reply, script, scripted

TIMEOUT_S = 120

FAST = ("--prompts", "short", "--repetitions", "2", "--concurrency", "1,2")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(scripted("m", deltas=5), scripted("failing", fail_loads=1000))
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


def bench(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if "MLX_GATEWAY_" not in k}
    return subprocess.run(
        [sys.executable, "-m", "gateway", "bench", "serve", "--url", url, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
    )


def workload(folder: Path, **checks: Any) -> str:
    content = script(*(f"word{n} " for n in range(1, 4)))
    case = {"id": "case-1", "messages": [{"role": "user", "content": content}], "checks": checks}
    path = folder / "workload.json"
    path.write_text(json.dumps({"name": "w", "cases": [case], "cache_policy": "before_run"}))
    return str(path)


def test_a_sweep_as_a_table(gateway: Daemon) -> None:
    done = bench(gateway.url, "--model", "m", *FAST)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.startswith("PROMPTS")
    assert [line.split()[:4] for line in lines] == [
        ["short", "1", "2", "0"],
        ["short", "2", "4", "0"],
    ]


def test_a_sweep_as_json_with_the_servers_counters(gateway: Daemon) -> None:
    done = bench(gateway.url, "--model", "m", *FAST, "--format", "json")
    document = json.loads(done.stdout)
    first = document["points"][0]
    assert (first["requests"], first["completion_tokens"]) == (2, 10)
    assert first["metrics"]["mlx_gateway_tokens_total"] > 10
    assert document["source"]["server_version"]


def test_a_workload_in_every_format(gateway: Daemon, tmp_path: Path) -> None:
    file = workload(tmp_path, required_regex=["word3"], finish_reason="stop", min_chars=5)
    common = ("--model", "m", "--workload", file, "--repetitions", "2")
    document = json.loads(bench(gateway.url, *common, "--include-content").stdout)
    (case,) = document["cases"]
    assert [answer["passed"] for answer in case["answers"]] == [True, True]
    assert case["answers"][0]["text"] == reply(3)
    assert "case-1" in bench(gateway.url, *common, "--format", "csv").stdout
    assert "INSERT INTO" in bench(gateway.url, *common, "--format", "sql").stdout
    path = tmp_path / "bench.db"
    for _ in range(2):
        done = bench(gateway.url, *common, "--format", "sqlite", "--output", str(path))
        assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute('SELECT "case", passed FROM bench_cases_v1').fetchall()
    assert rows == [("case-1", 2)] * 2


def test_a_failing_check_is_told(gateway: Daemon, tmp_path: Path) -> None:
    file = workload(tmp_path, forbidden_regex=["word2"])
    done = bench(gateway.url, "--model", "m", "--workload", file, "--format", "table")
    assert done.returncode == 1
    assert "holds 'word2'" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--model", "failing", *FAST), 1, ""),
        (("--workload", "/none.json"), 2, "cannot be read"),
        (("--model", "m", "--prompts", "huge"), 2, "none of short, medium, long"),
        (("--concurrency", "0"), 2, "whole numbers from 1"),
        (("--format", "sqlite"), 2, "needs --output"),
    ],
)
def test_exit_codes(gateway: Daemon, arguments: tuple[str, ...], code: int, told: str) -> None:
    done = bench(gateway.url, *arguments)
    assert done.returncode == code, done.stderr
    assert told in done.stderr


def test_nothing_answers() -> None:
    done = bench("http://127.0.0.1:9", "--model", "m")
    assert done.returncode == 3
    assert "nothing answers at http://127.0.0.1:9" in done.stderr
