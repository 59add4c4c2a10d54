"""Every timeline of `fixtures/lifecycle`: what becomes of models and calls when things collide.

Timelines mostly wait, so some run at the same time; each test reports one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.expectations import compare
from tests.harness.timeline import Case, Record, read_cases, run

CASES = {case.id: case for case in read_cases(Path(__file__).parents[1] / "fixtures" / "lifecycle")}
AT_ONCE = 2

pytestmark = pytest.mark.timed


@pytest.fixture(scope="module")
def records(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Record]]]:
    """The record of each case that was asked for, once it is there."""

    def play(case: Case, folder: Path) -> Record:
        return asyncio.run(run(case, folder))

    selected = {item.name for item in request.session.items}
    cases = [case for name, case in CASES.items() if f"test_timeline[{name}]" in selected]
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {
            case.id: pool.submit(play, case, tmp_path_factory.mktemp("timeline")) for case in cases
        }
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", CASES)
def test_timeline(name: str, records: dict[str, Future[Record]]) -> None:
    case = CASES[name]
    assert compare(case, records[name].result()) == [], case.why
