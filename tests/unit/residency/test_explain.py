"""What `explain` says, that it is what then happens, and that asking changes nothing."""

from __future__ import annotations

import pytest

from gateway.residency import ModelSpec, Occupant, State
from tests.unit.residency.play import Play
from tests.unit.residency.stories import BIG, policy

A, B, P = BIG


def busy_a(strategy: str = "wait", *more: ModelSpec, **changes: float) -> Play:
    """A is in use since 1, the budget is 10, A and B need 8 each."""
    rules = policy(strategy, **changes)  # type: ignore[arg-type]  # names are checked by Policy
    return Play(rules, (*BIG, *more)).run(
        "0 request 1 A -> load A, wait 1 loading\n1 ready A 7 -> grant 1 A"
    )


def test_what_fits_and_what_is_ready() -> None:
    played = busy_a()
    ready = played.scheduler.explain(2, "A")
    assert (ready.state, ready.fits, ready.ceiling) == (State.READY, True, "nothing")
    assert (ready.needs_bytes, ready.expected_wait_s, ready.expected_load_s) == (8, 0, 0)
    cold = played.scheduler.explain(2, "P")
    assert (cold.state, cold.fits, cold.leaves, cold.refusal) == (State.UNLOADED, True, (), None)
    assert (cold.expected_wait_s, cold.expected_load_s) == (0, None)
    assert (cold.budget_bytes, cold.committed_bytes, cold.available_bytes) == (10, 8, 2)


def test_who_would_leave_and_who_would_not() -> None:
    played = Play(
        policy(),
        (
            ModelSpec("A", 2),
            ModelSpec("B", 2),
            ModelSpec("C", 2, pin=True),
            *BIG[2:],
            ModelSpec("D", 2),
            ModelSpec("N", 4, expected_load_s=7),
        ),
    ).run(
        """
        0 load A      -> load A
        1 ready A 2   ->
        1 request 1 B -> load B, wait 1 loading
        2 ready B 2   -> grant 1 B
        2 load C      -> load C
        3 ready C 2   ->
        8 load D      -> load D
        9 ready D 2   ->
        """
    )
    told = played.scheduler.explain(10, "N")
    assert told.leaves == ("A",)
    assert (told.fits, told.ceiling, told.expected_wait_s) == (False, "budget", 0)
    assert told.expected_load_s == 7
    assert told.occupants == (
        Occupant("A", State.READY, 2, (), True, "idle for 9 s"),
        Occupant("C", State.READY, 2, (), False, "pinned"),
        Occupant("D", State.READY, 2, (), False, "kept for 4 s more because it has just loaded"),
        Occupant("B", State.READY, 2, (1,), False, "in use by 1 running call"),
    )
    played.run("10 pin A 40 ->")
    told = played.scheduler.explain(10, "N")
    assert told.occupants[0].why == "pinned for 30 s more"
    assert (told.leaves, told.expected_wait_s) == (("D",), 4), "when D has been there for 5 s"


def test_what_stops_shrinks_and_drains_is_told_in_order() -> None:
    played = Play(policy(), (ModelSpec("A", 5, 2), ModelSpec("B", 4), ModelSpec("C", 3))).run(
        """
        0 load A    -> load A
        1 ready A 5 ->
        1 load B    -> load B
        2 ready B 1 ->
        """
    )
    told = played.scheduler.explain(9, "C")
    assert (told.leaves, told.shrinks, told.expected_wait_s) == ((), ("A",), 0)
    told = busy_a("preempt", preempt_grace_s=3).scheduler.explain(2, "B")
    assert (told.leaves, told.expected_wait_s) == (("A",), 3)
    assert told.occupants == (
        Occupant("A", State.READY, 8, (1,), True, "in use by 1 running call"),
    )
    told = busy_a("wait_then_preempt").scheduler.explain(2, "B")
    assert (told.leaves, told.expected_wait_s) == (("A",), 12), "preempt_after_s and the grace"


def test_nobody_can_tell_how_long_a_call_takes() -> None:
    told = busy_a().scheduler.explain(2, "B")
    assert (told.leaves, told.expected_wait_s, told.refusal) == ((), None, None)


def test_a_refusal_at_once_is_told_as_it_would_be() -> None:
    played = busy_a("fail", ModelSpec("X", 11), ModelSpec("Y", 1, unavailable="no folder"))
    codes = {
        name: told.kind.code
        for name in "ABPXY"
        if (told := played.scheduler.explain(2, name).refusal) is not None
    }
    assert codes == {"B": "no_capacity", "X": "model_too_large", "Y": "model_unavailable"}
    assert played.scheduler.explain(2, "X").ceiling == "budget"


@pytest.mark.parametrize(
    ("before", "model", "ceiling"),
    [
        ("2 pressure warning ->", "P", "pressure"),
        ("2 load P -> load P", "Q", "load_concurrency"),
        ("2 load P -> load P\n3 ready P 1 ->", "Q", "max_engines"),
        ("2 crash A x 8 ->", "A", "stranded"),
        ("2 request 2 B -> wait 2 room", "B", "budget"),
        ("2 unload A ->", "A", "nothing"),
    ],
)
def test_the_ceiling(before: str, model: str, ceiling: str) -> None:
    engines = 2 if ceiling == "max_engines" else 3
    played = busy_a("wait", ModelSpec("Q", 1), max_engines=engines).run(before)
    assert played.scheduler.explain(3, model).ceiling == ceiling


def test_stranded_memory_is_waited_for() -> None:
    told = busy_a(wait_timeout_s=90).run("2 crash A x 5 ->").scheduler.explain(3, "B")
    assert (told.stranded_bytes, told.available_bytes, told.expected_wait_s) == (5, 5, 59)


def test_the_load_of_another_is_waited_for_when_it_is_known_how_long_it_takes() -> None:
    models = (ModelSpec("A", 2, expected_load_s=9), ModelSpec("B", 2), ModelSpec("C", 2))
    played = Play(policy(), models).run("0 load A -> load A")
    told = played.scheduler.explain(2, "B")
    assert (told.ceiling, told.expected_wait_s) == ("load_concurrency", 7)
    assert told.occupants[0].why == "loads, nobody waiting for it"
    assert played.scheduler.explain(2, "A").expected_load_s == 7
    played.run("9 ready A 2 ->\n9 load B -> load B")
    told = played.scheduler.explain(9, "C")
    assert told.expected_wait_s is None, "nobody knows how long B takes"


def test_who_is_ahead() -> None:
    played = busy_a().run(
        """
        2 request 2 B      -> wait 2 room
        2 request 3 B low  -> wait 3 room
        2 request 4 A high -> grant 4 A
        """
    )
    assert played.scheduler.explain(3, "B").ahead == (2,)
    assert played.scheduler.explain(3, "P").ahead == (2,)
    assert played.scheduler.explain(3, "A").ahead == ()


def test_what_leaves_already_is_told() -> None:
    played = busy_a().run("2 unload A ->\n3 request 2 B -> wait 2 room")
    told = played.scheduler.explain(4, "B")
    assert told.expected_wait_s == 28, "drain_max_s from the unload on"
    assert told.occupants[0].why == "leaves already after 1 running call"


def test_asking_changes_nothing_and_strangers_are_not_explained() -> None:
    played = busy_a("preempt")
    before = played.scheduler.snapshot(2)
    for name in "ABP":
        played.scheduler.explain(2, name)
    assert played.scheduler.snapshot(2) == before
    with pytest.raises(KeyError):
        played.scheduler.explain(2, "X")
    played.run("3 reload B P ->")
    with pytest.raises(KeyError):
        played.scheduler.explain(4, "A")
