"""Whose turn it is to take in a long prompt, on a clock of our own."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.supervisor import turns as module
from gateway.supervisor.turns import TURN_S, Granted, TurnDesk, Turns

pytestmark = pytest.mark.anyio


def names(granted: list[Granted]) -> list[str]:
    return [each.name for each in granted]


def test_one_after_the_other_in_the_order_of_asking() -> None:
    turns = Turns(1)
    assert turns.want(0, "a") == [Granted("a", 0)]
    assert turns.want(1, "b") == []
    assert turns.want(2, "c") == []
    assert turns.want(3, "b") == []  # asking again gives no other place
    assert turns.view().waiting == ("b", "c")
    assert turns.over(4, "a") == [Granted("b", 3)]
    assert turns.over(5, "b") == [Granted("c", 3)]
    assert turns.over(6, "c") == []
    assert turns.deadline is None


def test_an_engine_that_goes_gives_its_turn_or_its_place_back() -> None:
    turns = Turns(1)
    for name in "abc":
        turns.want(0, name)
    assert turns.over(1, "b") == []
    assert names(turns.over(1, "a")) == ["c"]
    assert turns.over(1, "stranger") == []
    assert turns.view().holding == ("c",)


def test_who_asks_while_holding_goes_to_the_end() -> None:
    turns = Turns(1)
    turns.want(0, "a")
    turns.want(0, "b")
    assert names(turns.want(1, "a")) == ["b"]
    assert turns.view().waiting == ("a",)


def test_a_turn_held_for_too_long_is_lent_on() -> None:
    turns = Turns(1)
    turns.want(0, "a")
    turns.want(5, "b")
    assert turns.deadline == TURN_S
    assert turns.tick(TURN_S - 0.1) == []
    assert turns.tick(TURN_S) == [Granted("b", TURN_S - 5)]
    view = turns.view()
    assert (view.holding, view.late, view.waiting) == (("b",), ("a",), ())
    assert turns.over(TURN_S + 1, "a") == []  # it had its turn
    assert turns.view().late == ()


def test_a_turn_that_has_lasted_long_unopposed_is_lent_at_once() -> None:
    turns = Turns(1)
    turns.want(0, "a")
    assert names(turns.want(10 * TURN_S, "b")) == ["b"]


def test_several_slots() -> None:
    turns = Turns(2)
    assert [len(turns.want(0, name)) for name in "abc"] == [1, 1, 0]
    assert names(turns.over(0, "a")) == ["c"]


def test_without_a_number_everybody_has_a_turn_at_once() -> None:
    turns = Turns(0)
    assert all(names(turns.want(0, str(number))) == [str(number)] for number in range(20))


def test_more_slots_are_lent_at_once_and_fewer_when_turns_come_back() -> None:
    turns = Turns(1)
    for name in "abcd":
        turns.want(0, name)
    assert names(turns.lend(1, 3)) == ["b", "c"]
    assert turns.lend(2, 1) == []
    assert turns.over(3, "a") == []
    assert turns.over(3, "b") == []
    assert names(turns.over(3, "c")) == ["d"]


def test_of_too_many_turns_all_that_are_late_stop_counting() -> None:
    turns = Turns(3)
    for name in "abcd":
        turns.want(0, name)
    assert turns.lend(1, 1) == []
    assert turns.deadline == TURN_S
    assert names(turns.tick(TURN_S)) == ["d"]
    assert turns.view().late == ("a", "b", "c")


EVENTS = st.lists(
    st.tuples(
        st.floats(0, 30),
        st.sampled_from(["want", "over", "lend", "tick"]),
        st.sampled_from("abcdef"),
        st.integers(0, 3),
    ),
    max_size=80,
)


@given(EVENTS)
def test_nobody_waits_for_ever_and_nobody_is_in_two_places(
    events: list[tuple[float, str, str, int]],
) -> None:
    turns, now, slots, asked = Turns(1), 0.0, 1, dict[str, float]()

    def check(granted: list[Granted]) -> None:
        for each in granted:
            assert each.waited_s == now - asked.pop(each.name)

    for after, what, name, number in events:
        now += after
        check(turns.tick(now))  # as the timer does, if late
        if what == "want":
            asked.setdefault(name, now)
            check(turns.want(now, name))
        elif what == "over":
            asked.pop(name, None)
            check(turns.over(now, name))
        elif what == "lend":
            slots = number
            check(turns.lend(now, number))
        view = turns.view()
        places = (*view.holding, *view.late, *view.waiting)
        assert len(set(places)) == len(places)
        assert list(view.waiting) == list(asked)  # in the order of asking
        if view.waiting:
            assert len(view.holding) >= slots >= 1
            assert turns.deadline is not None
            assert now < turns.deadline <= now + TURN_S
    while (deadline := turns.deadline) is not None:  # nobody gives anything back any more
        assert deadline > now
        now = deadline
        turns.tick(now)
    assert turns.view().waiting == ()


async def test_the_desk_lends_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_S", 0.01)
    granted: list[str] = []
    third = asyncio.Event()

    def grant(name: str, waited_s: float) -> None:
        granted.append(name)
        assert waited_s >= 0
        if len(granted) == 3:
            third.set()

    desk = TurnDesk(1, grant)
    for name in "abc":
        desk.want(name)
    assert granted == ["a"]
    async with asyncio.timeout(30):
        await third.wait()
    assert granted == ["a", "b", "c"]
    desk.want("d")
    desk.close()
    assert desk.view().waiting == ("d",)
