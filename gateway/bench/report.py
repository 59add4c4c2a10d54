"""Results as a table, JSON, CSV, SQL, or rows of an SQLite database."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from gateway.bench.contract import CaseResult
from gateway.bench.stats import Spread, Summary
from gateway.bench.sweep import Point

Format = Literal["table", "json", "csv", "sql", "sqlite"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "sql", "sqlite")

SCHEMA = 1
"""Grows with every change of the columns; the tables carry it in their names."""

Row = dict[str, str | int | float | None]


@dataclass(frozen=True, slots=True)
class Provenance:
    """What was measured where: the server as it names itself, and how it was asked."""

    at: str
    url: str
    model: str
    fingerprint: str | None
    server_version: str | None
    client_version: str
    host: str
    arguments: tuple[str, ...] = ()
    tag: str = ""


def sweep_rows(source: Provenance, points: Sequence[Point]) -> list[Row]:
    """One for each combination of prompts, streams and thinking."""
    return [
        {
            **_source(source),
            "prompts": point.prompts,
            "concurrency": point.concurrency,
            "thinking": None if point.thinking is None else int(point.thinking),
            **_figures(point.summary),
        }
        for point in points
    ]


def workload_rows(source: Provenance, name: str, results: Sequence[CaseResult]) -> list[Row]:
    """One for each case."""
    return [
        {
            **_source(source),
            "workload": name,
            "case": result.case.id,
            "tags": " ".join(result.case.tags),
            "passed": len(result.verdicts) - result.failures,
            "failed_checks": result.failures,
            "problems": "; ".join(sorted({p for v in result.verdicts for p in v.problems})),
            "within_policy": _within(result),
            **_figures(result.summary),
        }
        for result in results
    ]


def _within(result: CaseResult) -> int | None:
    """How many answers kept the policy's time; None without one."""
    told = [v.within_policy for v in result.verdicts if v.within_policy is not None]
    return sum(told) if told else None


def _source(source: Provenance) -> Row:
    return {
        "at": source.at,
        "model": source.model,
        "fingerprint": source.fingerprint,
        "server_version": source.server_version,
        "tag": source.tag,
    }


def _figures(of: Summary) -> Row:
    row: Row = {
        "requests": of.requests,
        "failed": of.failed,
        "errors": " ".join(f"{code}:{count}" for code, count in of.errors.items()),
        "wall_s": round(of.wall_s, 4),
        "tokens_per_s": round(of.tokens_per_s, 3),
        "requests_per_s": round(of.requests_per_s, 4),
        "prompt_tokens": of.prompt_tokens,
        "cached_tokens": of.cached_tokens,
        "completion_tokens": of.completion_tokens,
    }
    spreads = {"ttft": of.ttft_s, "tpot": of.tpot_s, "gap": of.gap_s, "duration": of.duration_s}
    for name, spread in spreads.items():
        for part in ("min", "p50", "p95", "p99", "max"):
            row[f"{name}_{part}_ms"] = _ms(spread, part)
    return row


def _ms(spread: Spread | None, part: str) -> float | None:
    return None if spread is None else round(getattr(spread, part) * 1000, 3)


# --- formats --------------------------------------------------------------------------------------

_SWEEP_COLUMNS = {
    "prompts": "PROMPTS",
    "concurrency": "STREAMS",
    "requests": "REQUESTS",
    "failed": "FAILED",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p95_ms": "p95",
    "tpot_p50_ms": "TPOT p50 ms",
    "gap_p99_ms": "GAP p99 ms",
    "tokens_per_s": "TOKENS/s",
    "cached_tokens": "CACHED",
}
_WORKLOAD_COLUMNS = {
    "case": "CASE",
    "passed": "PASSED",
    "failed_checks": "FAILED",
    "duration_p50_ms": "p50 ms",
    "duration_max_ms": "max ms",
    "tokens_per_s": "TOKENS/s",
    "problems": "PROBLEMS",
}


def table(rows: Sequence[Row]) -> str:
    """The columns that a person compares."""
    columns = _WORKLOAD_COLUMNS if rows and "case" in rows[0] else _SWEEP_COLUMNS
    cells = [list(columns.values()), *([_cell(row[key]) for key in columns] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def as_json(
    source: Provenance, points: Sequence[Point], name: str, results: Sequence[CaseResult]
) -> str:
    """Everything that was seen; of a workload every answer, with its text."""
    document = {
        "schema": SCHEMA,
        "source": asdict(source),
        "points": [
            {**_plain(point.summary), "prompts": point.prompts, "concurrency": point.concurrency}
            | {"thinking": point.thinking, "metrics": point.metrics}
            for point in points
        ],
        "workload": name or None,
        "cases": [
            {
                "id": result.case.id,
                "tags": result.case.tags,
                "policy_timeout_ms": result.case.policy_timeout_ms,
                **_plain(result.summary),
                "metrics": result.metrics,
                "answers": [
                    {
                        "passed": verdict.passed,
                        "problems": verdict.problems,
                        "within_policy": verdict.within_policy,
                        "duration_s": verdict.sample.duration_s,
                        "finish_reason": verdict.sample.finish_reason,
                        "characters": len(verdict.sample.text),
                        "text": verdict.sample.text,
                    }
                    for verdict in result.verdicts
                ],
            }
            for result in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def without_texts(document: str) -> str:
    """The same JSON without what the models said."""
    told = msgspec.json.decode(document)
    for case in told["cases"]:
        for answer in case["answers"]:
            del answer["text"]
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n"


def _plain(of: Summary) -> Mapping[str, Any]:
    return asdict(of)


def as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_sql(rows: Sequence[Row]) -> str:
    """Statements that SQLite, PostgreSQL and MySQL (ANSI quotes) take."""
    if not rows:
        return ""
    columns = ", ".join(f'"{key}"' for key in rows[0])
    lines = [f"{_create(rows[0])};"]
    for row in rows:
        values = ", ".join(map(_literal, row.values()))
        lines.append(f'INSERT INTO "{_table(row)}" ({columns}) VALUES ({values});')
    return "\n".join(lines) + "\n"


def into_sqlite(path: Path, rows: Sequence[Row]) -> None:
    """Appends to the database, which is made where it is missing. Raises `sqlite3.Error`."""
    if not rows:
        return
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(_create(rows[0]))
        marks = ", ".join("?" * len(rows[0]))
        columns = ", ".join(f'"{key}"' for key in rows[0])
        database.executemany(
            f'INSERT INTO "{_table(rows[0])}" ({columns}) VALUES ({marks})',
            [tuple(row.values()) for row in rows],
        )


def _table(row: Row) -> str:
    return f"bench_{'cases' if 'case' in row else 'points'}_v{SCHEMA}"


def _create(row: Row) -> str:
    columns = ", ".join(f'"{key}" {_type(key)}' for key in row)
    return f'CREATE TABLE IF NOT EXISTS "{_table(row)}" ({columns})'


_TEXTS = frozenset(
    {
        *("at", "model", "fingerprint", "server_version", "tag", "prompts", "errors"),
        *("workload", "case", "tags", "problems"),
    }
)


def _type(key: str) -> str:
    if key in _TEXTS:
        return "TEXT"
    return "REAL" if key.endswith(("_ms", "_s")) else "INTEGER"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)
