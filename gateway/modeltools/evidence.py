"""The record of a qualification: which model, with what, and how it did. Pure but for `write`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.bench.contract import CaseResult
from gateway.bench.report import Provenance, as_json

SCHEMA = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def passed(results: Sequence[CaseResult], cases: int) -> bool:
    """Whether every case was run and every answer is as it should be."""
    return len(results) == cases and not any(result.failures for result in results)


def evidence(
    source: Provenance,
    workload: tuple[str, str],
    status: Mapping[str, Any],
    results: Sequence[CaseResult],
    *,
    complete: int,
) -> dict[str, Any]:
    """`workload` is its name and the SHA-256 of its file, `status` what the gateway says of the
    model, `complete` the number of cases there are. Answers are kept as checksums."""
    name, digest = workload
    document: dict[str, Any] = json.loads(as_json(source, [], name, results))
    del document["points"]
    for case in document["cases"]:
        for answer in case["answers"]:
            answer["sha256"] = hashlib.sha256(answer.pop("text").encode()).hexdigest()
    return {
        "schema": SCHEMA,
        "passed": passed(results, complete),
        "cases_in_all": complete,
        "workload_sha256": digest,
        "model": {key: status.get(key) for key in ("name", "kind", "entry", "limits", "measured")},
        **{key: value for key, value in document.items() if key != "schema"},
    }


def file_name(model: str, at: str) -> str:
    """For a model's name of any kind, and an ISO time."""
    safe = _UNSAFE.sub("_", model).strip("._") or "model"
    return f"{safe[:100]}-{_UNSAFE.sub('', at.replace(':', ''))}.json"


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all, for this user alone. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "w", encoding="utf-8", opener=_private) as file:
        file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
