from __future__ import annotations

import pytest

from gateway.residency.eviction import Need, Victim, choose, choose_in_turn


def victims(**charges: int) -> list[Victim]:
    return [Victim(name, charge) for name, charge in charges.items()]


@pytest.mark.parametrize(
    ("candidates", "need", "chosen"),
    [
        (victims(a=1, b=2, c=3), Need(0), ""),
        (victims(a=1, b=2, c=3), Need(1), "a"),
        (victims(a=1, b=2, c=3), Need(3), "ab"),
        # c alone does it: a and b, taken before, are given up again
        (victims(a=1, b=2, c=9), Need(5), "c"),
        (victims(a=4, b=9, c=1), Need(5), "b"),
        # of two that do equally well the one that was next in turn goes
        (victims(a=3, b=3, c=6), Need(6), "ab"),
        (victims(a=2, b=2, c=2), Need(4), "ab"),
        # a process slot is worth a model of any size
        (victims(a=1, b=2), Need(-5, engines=1), "a"),
        (victims(a=1, b=8), Need(5, engines=2), "ab"),
    ],
)
def test_choose(candidates: list[Victim], need: Need, chosen: str) -> None:
    result = choose(candidates, need)
    assert result is not None
    assert "".join(victim.name for victim in result) == chosen


def test_nobody_leaves_when_all_together_are_not_enough() -> None:
    assert choose(victims(a=1, b=2), Need(4)) is None
    assert choose(victims(a=9), Need(4, engines=2)) is None
    assert choose_in_turn([victims(a=1), victims(b=2)], Need(4)) is None


@pytest.mark.parametrize(
    ("need", "chosen"),
    [(Need(2), "a"), (Need(4), "ab"), (Need(5), "abc"), (Need(8), "abc"), (Need(9), "abcd")],
)
def test_a_later_group_is_touched_only_after_all_of_the_earlier(need: Need, chosen: str) -> None:
    result = choose_in_turn([victims(a=3, b=1), victims(c=4, d=4)], need)
    assert result is not None
    assert "".join(victim.name for victim in result) == chosen


def test_in_each_group_only_what_is_needed_leaves() -> None:
    result = choose_in_turn([victims(a=3), victims(b=2, c=5)], Need(8))
    assert result == victims(a=3, c=5)
