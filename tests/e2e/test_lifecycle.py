"""Every timeline of `fixtures/lifecycle`: what becomes of models and calls when things collide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.expectations import compare
from tests.harness.timeline import Case, read_cases, run

pytestmark = pytest.mark.anyio

CASES = read_cases(Path(__file__).parents[1] / "fixtures" / "lifecycle")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_timeline(case: Case, tmp_path: Path) -> None:
    record = await run(case, tmp_path)
    assert compare(case, record) == [], case.why
