"""What stories do not show: timers, transitions, charges, and events that cannot be."""

from __future__ import annotations

import pytest

from gateway.residency import (
    FOREVER,
    IllegalTransition,
    ModelSpec,
    Policy,
    Priority,
    RegistryDiff,
    Request,
    SetTimer,
    StartLoad,
    State,
    Transition,
)
from tests.unit.residency.play import Play, play


def transitions(played: Play) -> list[tuple[str, State, State]]:
    return [(e.model, e.frm, e.to) for e in played.effects if isinstance(e, Transition)]


# --- defaults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "max_wait", "min_resident"), [(120, 60, 10), (300, 60, 10), (30, 15, 10), (8, 4, 4)]
)
def test_derived_defaults(timeout: float, max_wait: float, min_resident: float) -> None:
    policy = Policy(1, wait_timeout_s=timeout)
    assert (policy.max_wait_s, policy.min_resident_s) == (max_wait, min_resident)
    assert Policy(1, max_wait_s=7, min_resident_s=0).min_resident_s == 0


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="max_concurrency must be at least 1"):
        ModelSpec("A", 1, max_concurrency=0)
    with pytest.raises(ValueError, match="prompt_cache_bytes must lie within the charge"):
        ModelSpec("A", 1, prompt_cache_bytes=2)
    with pytest.raises(ValueError, match="at least 1"):
        Policy(1, load_concurrency=0)
    with pytest.raises(ValueError, match="use policy fail"):
        Policy(1, wait_timeout_s=0)
    with pytest.raises(ValueError, match="two models are called 'A'"):
        play("wait", ModelSpec("A", 1), ModelSpec("A", 2))


@pytest.mark.parametrize("keep", [-0.5, -2.0, float("nan")])
def test_an_impossible_keep_alive_is_refused(keep: float) -> None:
    with pytest.raises(ValueError, match="keep_alive_s must be at least 0, or -1 for ever"):
        Request(1, "A", keep_alive_s=keep)
    assert Request(1, "A", keep_alive_s=FOREVER).keep_alive_s == -1


def test_a_registry_that_contradicts_itself_changes_nothing() -> None:
    a, b = ModelSpec("A", 1), ModelSpec("B", 1)
    with pytest.raises(ValueError, match="two models are called 'A'"):
        RegistryDiff(Policy(10), (a, a))
    with pytest.raises(ValueError, match="to be restarted, but not in the registry: B"):
        RegistryDiff(Policy(10), (a,), frozenset({"A", "B"}))
    assert RegistryDiff(Policy(10), (a, b), frozenset({"B"})).restarted == {"B"}


# --- the timer --------------------------------------------------------------------------------


def test_the_timer_is_always_the_earliest_moment_and_is_set_only_when_it_changes() -> None:
    played = play("wait", ModelSpec("A", 8, ttl_s=50), ModelSpec("B", 8))
    played.run("0 request 1 A -> load A, wait 1 loading")
    assert not played.timer, "a load has no timeout here"
    played.run("1 ready A 7 -> grant 1 A\n2 request 2 B -> wait 2 room")
    assert played.timer == 6, "A may leave after min_resident_s"
    played.run("3 request 3 A -> grant 3 A")
    assert not any(isinstance(effect, SetTimer) for effect in played.effects)
    played.run("6 tick ->")
    assert played.timer == 22, "B's waiter starves after max_wait_s"
    played.run("22 tick ->")
    assert played.timer == 32, "and is refused at wait_timeout_s"
    played.run("23 leave 2 ->")
    assert not played.timer
    assert SetTimer(None) in played.effects
    played.run("24 release 1 ->\n25 release 3 ->")
    assert played.timer == 75, "the TTL, from the end of the last lease"


def test_a_drain_sets_the_timer_for_the_end_of_the_grace() -> None:
    played = play("preempt").run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        """
    )
    assert played.timer == 4


def test_a_grace_of_nothing_ends_calls_in_the_same_step() -> None:
    play("preempt", preempt_grace_s=0).run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> end A 1 preempted, wait 2 room
        """
    )


def test_waiters_of_a_model_in_back_off_set_the_timer_for_its_end() -> None:
    played = play("wait", ModelSpec("A", 8, max_concurrency=1)).run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 fail A x    -> reject 1 load_failed
        1 request 2 A -> load A, wait 2 loading
        1 request 3 A -> wait 3 loading
        2 ready A 7   -> grant 2 A, wait 3 room
        3 crash A x   ->
        """
    )
    assert played.timer == 13
    assert played.view("A").failed_until == 13
    played.run("13 tick -> load A, wait 3 loading")


def test_pins_and_stranded_bytes_set_the_timer_for_their_end() -> None:
    played = play("wait", ModelSpec("A", 8, ttl_s=5)).run("0 load A -> load A\n1 ready A 7 ->")
    assert played.timer == 6
    played.run("2 pin A ->")
    assert not played.timer
    assert played.view("A", 2).pinned
    assert (played.view("A").pinned_until, played.view("A").ttl_left_s) == (None, None)
    played.run("3 pin A 40 ->")
    assert played.timer == 40
    assert played.view("A", 3).pinned_until == 40
    played.run("4 unpin A ->")
    assert (played.timer, played.view("A", 4).ttl_left_s) == (6, 2)
    assert not played.view("A").pinned
    played.run("6 tick -> stop A ttl\n7 exit A 3 ->")
    assert played.timer == 67
    ledger = played.scheduler.snapshot(7).ledger
    assert (ledger.committed, ledger.stranded, ledger.available) == (0, 3, 7)
    played.run("67 tick ->")
    assert played.scheduler.snapshot(67).ledger.stranded == 0


def test_no_more_is_stranded_than_was_charged() -> None:
    played = play().run("0 load A -> load A\n1 crash A x 99 ->")
    assert played.scheduler.snapshot(1).ledger.stranded == 8
    played.run("2 load P -> load P\n3 exit P -5 ->")
    assert played.scheduler.snapshot(3).ledger.stranded == 8


# --- transitions --------------------------------------------------------------------------------


def test_every_change_of_state_is_told_with_its_cause() -> None:
    played = play("preempt")
    played.event(0, "request", "1", "A")
    assert played.effects[:2] == [
        Transition("A", State.UNLOADED, State.LOADING, "wanted"),
        StartLoad("A", 8),
    ]
    played.event(1, "ready", "A", "7")
    assert transitions(played) == [("A", State.LOADING, State.READY)]
    played.event(2, "request", "2", "B")
    assert transitions(played) == [("A", State.READY, State.DRAINING)]
    played.event(3, "release", "1")
    assert transitions(played) == [("A", State.DRAINING, State.UNLOADING)]
    played.event(4, "exit", "A")
    assert transitions(played) == [
        ("A", State.UNLOADING, State.UNLOADED),
        ("B", State.UNLOADED, State.LOADING),
    ]
    played.event(5, "fail", "B", "no-weights")
    assert Transition("B", State.LOADING, State.FAILED, "no-weights") in played.effects


def test_the_transitions_of_a_new_registry() -> None:
    played = play().run(
        "0 request 1 A -> load A, wait 1 loading\n1 fail A x -> reject 1 load_failed"
    )
    played.event(2, "reload", "A!", "B?", "P")
    assert transitions(played) == [
        ("A", State.FAILED, State.UNLOADED),
        ("B", State.UNLOADED, State.UNAVAILABLE),
    ]
    played.event(2, "reload", "A", "B", "P")
    assert transitions(played) == [("B", State.UNAVAILABLE, State.UNLOADED)]
    played.run("3 request 1 A -> load A, wait 1 loading\n4 ready A 7 -> grant 1 A")
    played.event(5, "reload", "B", "P")
    assert transitions(played) == [("A", State.READY, State.DRAINING)]
    played.event(6, "crash", "A", "SIGABRT")
    assert Transition("A", State.DRAINING, State.UNLOADING, "SIGABRT") in played.effects


@pytest.mark.parametrize("event", ["ready A 7", "fail A x", "crash A x", "exit A"])
def test_an_event_of_a_process_that_is_not_there_changes_nothing(event: str) -> None:
    played = play()
    before = played.scheduler.snapshot(0)
    with pytest.raises(IllegalTransition, match="'A'"):
        played.event(0, *event.split())
    assert played.scheduler.snapshot(0) == before


def test_a_second_ready_is_refused() -> None:
    played = play().run("0 request 1 A -> load A, wait 1 loading\n1 ready A 7 -> grant 1 A")
    with pytest.raises(IllegalTransition, match="'A' cannot go from ready to ready"):
        played.event(2, "ready", "A", "7")


def test_the_id_of_a_living_request_cannot_be_used_again() -> None:
    played = play().run("0 request 1 A -> load A, wait 1 loading")
    with pytest.raises(ValueError, match="request 1 has not ended"):
        played.event(1, "request", "1", "B")
    played.run("1 ready A 7 -> grant 1 A")
    with pytest.raises(ValueError, match="request 1 has not ended"):
        played.event(2, "request", "1", "B")
    played.run("3 release 1 ->\n4 request 1 A -> grant 1 A")


# --- charges ------------------------------------------------------------------------------------


def test_the_charge_stays_until_the_process_is_reaped() -> None:
    played = play().run("0 request 1 A -> load A, wait 1 loading")
    assert played.view("A").charge_bytes == 8
    played.run("1 leave 1 ->\n2 request 2 B -> cancel-load A, wait 2 room")
    assert (played.view("A").charge_bytes, played.state("A")) == (8, State.UNLOADING)
    played.run("3 footprint A 9 ->")
    assert played.view("A").charge_bytes == 8, "what leaves is not measured any more"
    played.run("4 exit A -> load B, wait 2 loading")
    assert (played.view("A").charge_bytes, played.view("B").charge_bytes) == (0, 8)


def test_a_load_that_needed_more_than_its_limits_reserves_that_much_next_time() -> None:
    played = play("wait", ModelSpec("A", 6)).run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 9   -> grant 1 A
        2 unload A    ->
        3 release 1   -> stop A requested
        4 exit A      ->
        5 request 2 A -> load A, wait 2 loading
        """
    )
    assert StartLoad("A", 9) in played.effects
    played.run("6 ready A 5 -> grant 2 A")
    assert played.view("A").charge_bytes == 6, "the larger of limits and measurement"


def test_a_footprint_while_loading_only_raises_the_charge() -> None:
    played = play().run("0 request 1 A -> load A, wait 1 loading\n1 footprint A 2 ->")
    assert played.view("A").charge_bytes == 8
    played.run("2 footprint A 11 ->")
    ledger = played.scheduler.snapshot(2).ledger
    assert (ledger.committed, ledger.available) == (11, 0)
    assert ledger.overcommitted == "A uses 11 B, 8 B were charged"


def test_new_limits_are_charged_as_far_as_the_measurement_allows() -> None:
    played = play("wait", ModelSpec("A", 8, 2)).run(
        "0 request 1 A -> load A, wait 1 loading\n1 ready A 5 -> grant 1 A"
    )
    played.run("2 reload A=4/1 -> limits A 1")
    assert played.view("A").charge_bytes == 5
    played.run("3 footprint A 3 ->")
    assert played.view("A").charge_bytes == 4
    played.run("4 reload A=12/1 budget=20 -> limits A 1")
    assert played.view("A").charge_bytes == 12
    played.run("5 reload A=12/1 budget=11 ->")
    ledger = played.scheduler.snapshot(5).ledger
    assert (ledger.budget, ledger.available) == (11, 0)
    assert ledger.overcommitted == "the budget was lowered from 20 B to 11 B"


def test_an_old_process_is_charged_by_its_own_limits() -> None:
    played = play().run(
        """
        0 request 1 A     -> load A, wait 1 loading
        1 ready A 7       -> grant 1 A
        2 reload A=3! B P ->
        3 footprint A 2   ->
        """
    )
    assert played.view("A").charge_bytes == 8
    played.run(
        """
        4 request 2 A -> wait 2 room
        5 release 1   -> stop A reload
        6 exit A      -> load A, wait 2 loading
        """
    )
    assert played.view("A").charge_bytes == 3


def test_what_an_old_spec_taught_is_forgotten_with_it() -> None:
    played = play("wait", ModelSpec("A", 6)).run(
        "0 load A -> load A\n1 ready A 9 ->\n2 reload A=5! -> stop A reload\n3 exit A -> load A"
    )
    assert StartLoad("A", 5) in played.effects


# --- what an operator sees ------------------------------------------------------------------------


def test_snapshot() -> None:
    played = play("wait", ModelSpec("A", 8, max_concurrency=1), ModelSpec("C", 2)).run(
        """
        0 request 1 A      -> load A, wait 1 loading
        1 ready A 7        -> grant 1 A
        2 request 2 A high -> wait 2 room
        3 load C           -> load C
        """
    )
    played.scheduler.on_load_progress(4, "C", 30, 100)
    seen = played.scheduler.snapshot(5)
    a, c = seen.models
    assert (a.state, a.leases, a.running, a.waiting, a.idle_s) == (State.READY, (1,), 1, 1, None)
    assert (a.charge_bytes, a.measured_bytes, a.loads, a.evictions) == (8, 7, 1, 0)
    assert (c.state, c.load_done, c.load_total) == (State.LOADING, 30, 100)
    (waiter,) = seen.waiters
    assert (waiter.request_id, waiter.model, waiter.waited_s) == (2, "A", 3)
    assert waiter.priority is Priority.HIGH
    assert (seen.ledger.budget, seen.ledger.committed, seen.ledger.available) == (10, 10, 0)
    assert (seen.engines, seen.pressure) == (2, "normal")
    played.run("6 ready C 1 ->\n7 release 1 -> grant 2 A\n8 release 2 ->")
    assert [view.idle_s for view in played.scheduler.snapshot(10).models] == [2, 4]


def test_a_wish_that_came_to_nothing_says_why() -> None:
    played = play("wait", ModelSpec("A", 8), ModelSpec("B", 8), ModelSpec("X", 11)).run(
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 load B      ->
        32 tick       ->
        33 load X     ->
        """
    )
    reasons = {view.name: view.reason for view in played.scheduler.snapshot(33).models}
    assert reasons["A"] is None
    assert reasons["B"] is not None
    assert reasons["B"].startswith("No room for model 'B'")
    assert reasons["X"] is not None
    assert "more than the whole memory budget" in reasons["X"]
    played.run("40 release 1 ->")
    assert played.state("B") is State.UNLOADED


def test_a_preload_that_does_not_fit_says_why_and_asking_twice_does_not_nest_the_reason() -> None:
    played = play("wait", ModelSpec("A", 8), ModelSpec("B", 8), ModelSpec("Y", 1, unavailable="x"))
    played.run("0 load A free-room -> load A\n0 load B free-room ->\n0 load Y ->\n0 load Y ->")
    reason = played.view("B").reason
    assert reason is not None
    assert reason.startswith("No room for model 'B'")
    assert played.view("Y").reason == "Model 'Y' is unavailable: x"


def test_refusal_for_says_what_a_request_would_be_told() -> None:
    played = play("wait", ModelSpec("A", 8), ModelSpec("X", 11))
    refusal_for = played.scheduler.refusal_for
    assert refusal_for(0, "A") is None
    codes = [refusal.kind.code for name in "XY" if (refusal := refusal_for(0, name))]
    assert codes == ["model_too_large", "model_not_found"]
