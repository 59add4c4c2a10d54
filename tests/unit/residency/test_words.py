"""What people are told: the words of refusals, and when it is worth trying again."""

from __future__ import annotations

import pytest

from gateway.residency import CancelLeases, ModelSpec, State
from gateway.residency.text import seconds, size
from tests.unit.residency.play import play
from tests.unit.residency.stories import BIG

GIB = 2**30


def test_no_capacity_names_policy_blockers_and_until_when() -> None:
    played = play("fail").run(
        """
        0 load P      -> load P
        1 ready P 1   ->
        1 request 1 A -> load A, wait 1 loading
        2 ready A 7   -> grant 1 A
        3 request 2 B -> reject 2 no_capacity
        """
    )
    assert played.refusal() == (
        "No room for model 'B' (8 B of a budget of 10 B); policy fail gave up at once. In the "
        "way: 'A' (8 B, ready, 1 running call), 'P' (1 B, ready, pinned, kept for 3 s more)."
    )
    assert played.retry_after() == 4, "not before A is out of min_resident_s"


def test_a_waiter_that_times_out_is_told_how_long_it_waited() -> None:
    played = play().run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        32 tick       -> reject 2 no_capacity
        """
    )
    assert "policy wait gave up after waiting 30 s" in played.refusal()


def test_pressure_is_named_as_what_is_in_the_way() -> None:
    played = play("fail").run("0 pressure warning ->\n0 request 1 A -> reject 1 no_capacity")
    assert "the system reports warning memory pressure" in played.refusal()


def test_a_failed_load_tells_its_cause_and_when_to_retry() -> None:
    played = play().run(
        "0 request 1 A -> load A, wait 1 loading\n1 fail A SIGKILL -> reject 1 load_failed"
    )
    assert played.refusal() == "Model 'A' has failed: SIGKILL"
    assert played.retry_after() == 1
    played.run("1 request 2 A -> load A, wait 2 loading\n2 fail A SIGKILL -> reject 2 load_failed")
    assert played.retry_after() == 10
    played.run("5.5 request 3 A -> reject 3 load_failed")
    assert played.retry_after() == 7


def test_back_off_ends_at_five_minutes_however_often_a_model_fails() -> None:
    played, now = play(), 0.0
    for number in range(2000):
        played.event(now, "request", str(number), "A")
        played.event(now, "fail", "A", "x")
        until = played.view("A").failed_until
        assert until is not None
        assert until - now <= 300
        now = until
    assert played.retry_after() == 300


def test_the_estimate_for_a_full_queue_follows_how_long_calls_take() -> None:
    played = play("wait", ModelSpec("A", 8, max_concurrency=1, max_queue=1)).run(
        """
        0 request 1 A  -> load A, wait 1 loading
        0 request 2 A  -> wait 2 loading
        0 request 3 A  -> reject 3 queue_full
        1 ready A 7    -> grant 1 A, wait 2 room
        21 release 1   -> grant 2 A
        22 request 4 A -> wait 4 room
        22 request 5 A -> reject 5 queue_full
        """
    )
    assert played.refusal() == "Model 'A' has 1 running call (limit 1) and 1 waiting (limit 1)."
    assert played.retry_after() == 12


def test_a_starved_neighbour_is_named_to_those_it_keeps_waiting() -> None:
    played = play().run(
        """
        0 request 1 A  -> load A, wait 1 loading
        1 ready A 7    -> grant 1 A
        2 request 2 B  -> wait 2 room
        12 request 3 B -> wait 3 room
        22 request 4 B -> wait 4 room
        23 request 5 A -> wait 5 room
        31 request 6 B -> wait 6 room
        # One starved waiter of B follows the other, so A never serves.
        32 tick        -> reject 2 no_capacity
        42 tick        -> reject 3 no_capacity
        52 tick        -> reject 4 no_capacity
        53 tick        -> reject 5 queue_full
        """
    )
    assert played.refusal() == (
        "Model 'A' was still busy after waiting 30 s: 1 running call, and model 'B', which has "
        "waited longer, is next."
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (16 * 2**20, "16.0 MiB"),
        (36 * GIB, "36.0 GiB"),
        (2**51, "2048.0 TiB"),
    ],
)
def test_sizes_never_read_as_nothing(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("value", "whole"), [(-3.0, 1), (0.0, 1), (1.0, 1), (1.01, 2), (9.5, 10)])
def test_retry_after_is_a_whole_number_of_seconds(value: float, whole: int) -> None:
    assert seconds(value) == whole


def test_the_words_of_a_new_registry() -> None:
    played = play("wait", ModelSpec("A", 8, max_concurrency=1), ModelSpec("B", 8)).run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 A -> wait 2 room
        3 reload B    -> reject 2 model_not_found
        """
    )
    assert played.refusal() == "Model 'A' was removed from the registry."
    assert (played.view("A").removed, played.state("A")) == (True, State.DRAINING)
    assert [view.name for view in played.scheduler.snapshot(3).models] == ["B", "A"]
    played.run("33 tick -> end A 1 preempted")
    (end,) = [effect for effect in played.effects if isinstance(effect, CancelLeases)]
    assert end.reason.message == "Model 'A' was removed from the registry; the call ended."
    assert end.reason.retry_after_s is None
    for ask in ("load", "unload", "pin", "unpin"):
        with pytest.raises(KeyError):
            played.event(34, ask, "A")


def test_the_calls_of_a_restarted_model_are_told_when_to_try_again() -> None:
    played = play("wait", ModelSpec("A", 8, expected_load_s=12.5)).run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 reload A!   ->
        32 tick       -> end A 1 preempted
        """
    )
    (end,) = [effect for effect in played.effects if isinstance(effect, CancelLeases)]
    assert "was changed in the registry and restarts" in end.reason.message
    assert end.reason.retry_after_s == 13


def test_who_may_evict_nobody_is_told_so() -> None:
    played = play().run(
        """
        0 request 1 A           -> load A, wait 1 loading
        1 request 2 B free-room -> reject 2 no_capacity
        """
    )
    assert "nothing may be evicted for this request, so policy wait does not apply" in (
        played.refusal()
    )


def test_stranded_memory_is_named_and_bounds_the_estimate() -> None:
    played = play("fail").run(
        "0 load A -> load A\n1 crash A x 6 ->\n2 request 1 B -> reject 1 no_capacity"
    )
    assert "6 B that ended models have not given back yet" in played.refusal()
    assert played.retry_after() == 59


def test_a_load_that_is_known_to_take_long_moves_the_estimates() -> None:
    played = play(
        "fail", ModelSpec("A", 8, max_concurrency=1, max_queue=0, expected_load_s=20), *BIG[1:]
    ).run("0 request 1 A -> load A, wait 1 loading\n5 request 2 A -> reject 2 queue_full")
    assert played.retry_after() == 17, "15 s of loading, and a second for each of two calls"
    played.run("6 request 3 B -> reject 3 no_capacity")
    assert played.retry_after() == 19, "14 s of loading, and min_resident_s"


def test_a_place_in_a_queue_is_free_when_the_oldest_gives_up() -> None:
    played = play(
        "wait",
        ModelSpec("A", 8),
        ModelSpec("B", 8, max_concurrency=1, max_queue=0, expected_load_s=50),
    ).run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        5 request 3 B -> reject 3 queue_full
        """
    )
    assert played.retry_after() == 27
