"""Every fixture row gives the same answer however its text is cut."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.parsers.pipeline import CALL_HOLD_CHARACTERS
from tests.unit.parsers.answers import (
    ROWS,
    Answer,
    Row,
    answer_to,
    as_marked,
    by_size,
    steps,
    whole,
)

rows = pytest.mark.parametrize("row", ROWS, ids=str)


def expect(row: Row, answer: Answer) -> None:
    assert answer.content == row.content
    assert answer.trace == row.trace
    called = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    assert called == row.calls
    assert all(call.complete for call in answer.calls)
    assert answer.stopped == row.stopped
    cut = row.finish == "length" and row.stopped is None
    assert answer.finish_reason == ("length" if cut else "tool_calls" if row.calls else "stop")
    for call in answer.calls:
        assert re.fullmatch(row.ids, call.call_id)
    if row.call_ids:
        assert tuple(call.call_id for call in answer.calls) == row.call_ids


@rows
@pytest.mark.parametrize(
    "cut",
    [whole, as_marked, by_size(1), by_size(7)],
    ids=["whole", "as-marked", "characters", "sevens"],
)
def test_row(row: Row, cut: Callable[[str], list[str]]) -> None:
    expect(row, answer_to(row, cut))


@rows
@given(sizes=st.lists(st.integers(1, 15), min_size=1, max_size=20))
@settings(max_examples=4, deadline=None)
def test_row_at_random_cuts(row: Row, sizes: list[int]) -> None:
    assert answer_to(row, by_size(*sizes)) == answer_to(row, whole)


@pytest.mark.parametrize(("row", "other"), list(itertools.pairwise(ROWS)), ids=str)
def test_two_answers_at_a_time(row: Row, other: Row) -> None:
    runs = [steps(each, each.pieces(by_size(3)), CALL_HOLD_CHARACTERS) for each in (row, other)]
    ends = [Answer(), Answer()]
    for now in itertools.zip_longest(*runs):
        ends = [new or old for new, old in zip(now, ends, strict=True)]
    expect(row, ends[0])
    expect(other, ends[1])


@rows
def test_complete_calls_are_the_same_without_holding(row: Row) -> None:
    streamed = [answer_to(row, cut, call_hold=0) for cut in (whole, by_size(1), by_size(7))]
    for answer in streamed:
        complete = [call for call in answer.calls if call.complete]
        assert [(call.name, json.loads(call.arguments)) for call in complete] == row.calls
        assert answer.trace == row.trace
