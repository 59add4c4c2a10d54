"""The pure parts: figures, prompts, scraping, checks, workload files, formats."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench import report
from gateway.bench.client import Sample
from gateway.bench.contract import CaseResult, Verdict, judge
from gateway.bench.prompts import WORDS, BadPrompts, prompt
from gateway.bench.report import Provenance
from gateway.bench.scrape import Scrape, difference, read
from gateway.bench.stats import percentile, spread, summary
from gateway.bench.sweep import Point
from gateway.bench.workload import BadWorkload, Case, Checks, load, parse

GOOD = Sample(
    duration_s=1.1,
    ttft_s=0.1,
    gaps_s=[0.25] * 4,
    text="Hello",
    finish_reason="stop",
    prompt_tokens=7,
    completion_tokens=5,
    cached_tokens=2,
    status=200,
)
BAD = Sample(duration_s=9.0, status=503, error="no_capacity")
SOURCE = Provenance("2026-01-01", "http://x", "m", "fp_1", "1.0", "1.0", "Linux", (), "it's")


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values(values: list[float], fraction: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, fraction)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= fraction * len(ordered)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_spread_is_in_order(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert found.min <= found.p50 <= found.p95 <= found.p99 <= found.max
    assert found.count == len(values)


def test_a_summary_counts_complete_answers_only() -> None:
    found = summary([GOOD, BAD, GOOD], 2.0)
    assert (found.requests, found.failed, found.errors) == (3, 1, {"no_capacity": 1})
    assert (found.completion_tokens, found.tokens_per_s, found.requests_per_s) == (10, 5.0, 1.0)
    assert found.duration_s is not None
    assert found.duration_s.max == 1.1
    assert found.tpot_s is not None
    assert found.tpot_s.p50 == pytest.approx(0.25)
    nothing = summary([], 0.0)
    assert (nothing.ttft_s, nothing.tokens_per_s, nothing.failure_rate) == (None, 0.0, 0.0)


def test_prompts_are_the_same_again_and_each_another_one(tmp_path: Path) -> None:
    for name in WORDS:
        assert prompt(name, 1, 0) == prompt(name, 1, 0)
        assert len({prompt(name, number, seed) for number in range(3) for seed in range(3)}) == 9
    (tmp_path / "mine.txt").write_text("my own text")
    assert prompt(str(tmp_path / "mine.txt"), 4, 5) == "Request 5-4.\nmy own text"
    with pytest.raises(BadPrompts, match="none of short, medium, long"):
        prompt("huge", 0, 0)


def test_counters_are_summed_and_compared() -> None:
    before = read('a_total{model="x"} 1\na_total{model="y"} 2\nb 7\n# HELP c_total x\n')
    after = read('a_total{model="x"} 4\na_total{model="y"} 2\nc_seconds_sum 1.5\n')
    assert before == Scrape({"a_total": 3.0})
    assert difference(before, after) == {"a_total": 3.0, "c_seconds_sum": 1.5}


# --- checks ---------------------------------------------------------------------------------------


def checks(**given: Any) -> Checks:
    document = {"cases": [{"id": "c", "messages": [], "checks": given}]}
    return loaded(document).checks


def loaded(document: dict[str, Any], folder: Path | None = None) -> Case:
    return parse(document, folder or Path()).cases[0]


@pytest.mark.parametrize(
    ("given", "sample", "problems"),
    [
        ({}, GOOD, ()),
        ({}, BAD, ("failed: no_capacity",)),
        ({"finish_reason": "stop", "min_chars": 5, "max_chars": 5}, GOOD, ()),
        ({"finish_reason": "length"}, GOOD, ("finish_reason is stop, not length",)),
        ({"required_regex": ["^Hel", "bye"]}, GOOD, ("lacks 'bye'",)),
        ({"forbidden_regex": ["", "l+o"]}, GOOD, ("holds 'l+o'",)),
        ({"min_chars": 6}, GOOD, ("has 5 characters, fewer than 6",)),
        ({"max_chars": 4}, GOOD, ("has 5 characters, more than 4",)),
    ],
)
def test_answers_are_judged(
    given: dict[str, Any], sample: Sample, problems: tuple[str, ...]
) -> None:
    assert judge(checks(**given), sample) == problems


def test_a_case_goes_before_the_defaults(tmp_path: Path) -> None:
    request = {"model": "other", "messages": [{"role": "user", "content": "x"}], "top_k": 3}
    (tmp_path / "request.json").write_text(json.dumps(request))
    case = {"id": "c", "request_path": "request.json", "max_tokens": 9, "extra_body": {"top_k": 4}}
    defaults = {"max_tokens": 5, "seed": 1, "policy_timeout_ms": 100}
    found = loaded({"defaults": defaults, "cases": [case]}, tmp_path)
    assert found.body == {
        "messages": request["messages"],
        "max_tokens": 9,
        "seed": 1,
        "top_k": 4,
    }
    assert found.policy_timeout_ms == 100


def test_every_problem_of_a_workload_is_told(tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    document = {
        "nmae": "typo",
        "cache_policy": "sometimes",
        "cases": [
            {"id": "a", "messages": [], "checks": {"required_regex": "("}},
            {"id": "a", "checks": {"min_chars": "many"}},
            {"messages": [], "request_path": "x"},
            {"id": "b", "request_path": "missing.json"},
            {"id": "c", "messages": [], "checks": {"forbidden_regex": 5}},
        ],
    }
    path.write_text(json.dumps(document))
    with pytest.raises(BadWorkload) as error:
        load(path)
    told = str(error.value).splitlines()
    for beginning in (
        "nmae: there is no such key",
        "cache_policy: 'sometimes' is none of preserve, before-run, before-case",
        "cases[0].checks.required_regex: '(' is no pattern",
        "cases[1]: give either messages or request_path",
        "cases[1].checks.min_chars: 'many' is no whole number",
        "cases[2].id: every case needs one",
        "cases[3].request_path: ",
        "cases[4].checks.forbidden_regex: 5 is no pattern and no list of them",
        "cases: the id 'a' is there twice",
    ):
        assert any(line.startswith(beginning) for line in told), (beginning, told)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cases": []}'])
def test_what_is_no_workload_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(BadWorkload):
        load(tmp_path / "w.json")


# --- formats --------------------------------------------------------------------------------------

POINT = Point("short", 2, True, summary([GOOD, BAD], 2.0), (GOOD, BAD), {"a_total": 1.0})
RESULT = CaseResult(
    Case("c'1", {}, tags=("a", "b")),
    (Verdict(GOOD, (), True), Verdict(BAD, ("failed: no_capacity",), False)),
    summary([GOOD, BAD], 2.0),
    {},
)


@pytest.mark.parametrize("kind", ["points", "cases"])
def test_every_format_says_the_same(tmp_path: Path, kind: str) -> None:
    if kind == "points":
        rows = report.sweep_rows(SOURCE, [POINT])
    else:
        rows = report.workload_rows(SOURCE, "w", [RESULT])
    (from_csv,) = csv.DictReader(io.StringIO(report.as_csv(rows)))
    assert from_csv["tag"] == "it's"
    assert from_csv["failed"] == "1"
    path = tmp_path / "bench.db"
    report.into_sqlite(path, rows)
    report.into_sqlite(path, rows)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(report.as_sql(rows))
        table = f"bench_{kind}_v{report.SCHEMA}"
        found = database.execute(f"SELECT tag, tokens_per_s, ttft_p50_ms FROM {table}").fetchall()
    assert found == [("it's", 2.5, 100.0)] * 3
    assert len(report.table(rows).splitlines()) == 2


def test_json_holds_texts_only_when_asked() -> None:
    text = report.as_json(SOURCE, [POINT], "w", [RESULT])
    document = json.loads(text)
    assert document["points"][0]["metrics"] == {"a_total": 1.0}
    assert document["cases"][0]["answers"][0]["text"] == "Hello"
    assert "text" not in json.loads(report.without_texts(text))["cases"][0]["answers"][0]
