"""CPU seconds per token of rows that keep to a JSON schema, over those of plain rows.

Same engine process, same model, same batch, in turns. The model is so small that the ratio is the
worst there is; what a token costs more is what carries over to larger ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from demo.models import Cache
from engines import wire
from tests.bench.engine_cpu import Case, Worker
from tests.bench.report import Line
from tests.fixtures.make_models import random_micro

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 20_000}},
    "required": ["text"],
}
"""Never finished within the tokens of a case, so every row runs to its end."""

CASES = (
    Case("random-micro", streams=8, tokens=200, repeats=5, most=0),
    Case("smollm2-135m-f32", streams=2, tokens=16, repeats=2, most=0),
)


def lines(folder: Path) -> Iterator[Line]:
    for case in CASES:
        if case.name == "random-micro":
            model = random_micro(folder)
        else:
            model = Cache().ensure([case.name])[case.name]
        yield from _compare(case, model)


def _compare(case: Case, model: Path) -> Iterator[Line]:
    wanted = wire.Format("json_schema", SCHEMA)
    with Worker(model) as worker:
        worker.cost(case)  # the first batch pays for what the second finds
        worker.cost(case, wanted)
        pairs = [(worker.cost(case), worker.cost(case, wanted)) for _ in range(case.repeats)]
    more = statistics.median(held - plain for plain, held in pairs)
    ratio = statistics.median(held / plain for plain, held in pairs)
    what = f"{case.name}, {case.streams} streams"
    yield Line(f"CPU per token more under a JSON schema, {what}", 1e6 * more, "us")
    yield Line(f"rows under a JSON schema over plain rows, {what}", ratio, "x")
