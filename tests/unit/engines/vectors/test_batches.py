"""Which rows go through the model together, and how many."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from engines.vectors.batches import (
    LEAST_TOKENS,
    MOST_ROWS,
    MOST_TOKENS,
    Batch,
    Cost,
    Pace,
    Pending,
    Room,
    Row,
    padded,
    take_batch,
)

FREE = Cost(0, 0)


def call(call_id: int, *lengths: int) -> Pending[int]:
    rows = [Row(index, [0] * length) for index, length in enumerate(lengths)]
    return Pending(call_id, rows, 0.0)


def room(tokens: int) -> Room:
    return Room(tokens, 2**40, FREE)


def lengths(batch: Batch[int]) -> dict[int, list[int]]:
    """Of the rows of each call."""
    found: dict[int, list[int]] = {}
    for pending, row in batch:
        found.setdefault(pending.id, []).append(len(row.tokens))
    return found


def test_a_batch_has_rows_of_like_lengths_within_its_tokens() -> None:
    pending = call(1, 3, 100, 60, 49, 50)
    assert lengths(take_batch([pending], room(400))) == {1: [100, 60, 50]}
    assert lengths(take_batch([pending], room(400))) == {1: [49]}
    assert lengths(take_batch([pending], room(400))) == {1: [3]}
    assert take_batch([pending], room(400)) == []


def test_a_row_longer_than_a_batch_goes_alone() -> None:
    assert lengths(take_batch([call(1, 1000, 999)], room(10))) == {1: [1000]}


def test_a_batch_keeps_within_its_bytes() -> None:
    cost = Cost(per_token=10, per_pair=1)
    assert cost.row(10) == 10 * (10 + 10)
    assert lengths(take_batch([call(1, *[10] * 9)], Room(10_000, 450, cost))) == {1: [10, 10]}
    assert cost.longest(100, 200) == 10
    assert cost.longest(100, 199) == 9
    assert cost.longest(5, 10**9) == 5


def test_however_short_rows_are_there_is_a_most() -> None:
    assert len(take_batch([call(1, *[1] * 1000)], room(10_000))) == MOST_ROWS


def test_calls_share_a_batch_evenly() -> None:
    first, second, third = call(1, *[10] * 20), call(2, *[10] * 20), call(3, 9)
    batch = take_batch([first, second, third], room(90))
    assert lengths(batch) == {1: [10] * 4, 2: [10] * 4, 3: [9]}


def test_what_does_not_fit_to_the_leader_waits_for_its_own_lead() -> None:
    leader, longer, shorter = call(1, 40), call(2, 100), call(3, 10)
    assert lengths(take_batch([leader, longer, shorter], room(1000))) == {1: [40]}
    assert lengths(take_batch([leader, longer, shorter], room(1000))) == {2: [100]}


def test_what_was_taken_can_be_given_back() -> None:
    pending = call(1, 5, 8, 6)
    for taken, row in take_batch([pending], room(100)):
        taken.give_back(row)
    assert pending.longest == 8
    assert pending.left_tokens == 19


def test_results_come_in_the_order_of_the_inputs() -> None:
    pending = call(1, 5, 50, 1)
    while batch := take_batch([pending], room(50)):
        for taken, row in batch:
            assert not taken.done
            taken.set(row, row.index * 10)
    assert pending.done
    assert pending.results == [0, 10, 20]


def test_results_before_the_end_are_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="call 1 has 0 of 2 results"):
        _ = call(1, 5, 5).results


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_taken_once_and_padding_at_most_doubles(seed: int) -> None:
    chance = random.Random(seed)
    calls = [
        call(number, *(chance.randint(1, 300) for _ in range(chance.randint(1, 40))))
        for number in range(chance.randint(1, 5))
    ]
    wanted = {pending.id: pending.left_tokens for pending in calls}
    tokens = chance.randint(50, 2000)
    taken = Counter[int]()
    while batch := take_batch(calls, room(tokens)):
        real = sum(len(row.tokens) for _, row in batch)
        assert padded(batch) <= 2 * real
        assert padded(batch) <= tokens or len(batch) == 1
        for pending, row in batch:
            taken[pending.id] += len(row.tokens)
        calls.append(calls.pop(0))
    assert taken == wanted


def test_the_pace_is_learned_and_grows_by_two_at_most() -> None:
    pace = Pace(target_s=0.1, tokens=1000)
    pace.took(1000, 0.001)
    assert pace.tokens == 2000
    pace.took(2000, 0.2)
    assert pace.tokens == 1000
    pace.took(1000, 100.0)
    assert pace.tokens == LEAST_TOKENS
    for _ in range(20):
        pace.took(pace.tokens, 1e-9)
    assert pace.tokens == MOST_TOKENS


def test_a_small_fast_batch_does_not_make_large_ones() -> None:
    pace = Pace(target_s=0.1, tokens=1000)
    pace.took(10, 0.0001)
    assert pace.tokens == 1000
