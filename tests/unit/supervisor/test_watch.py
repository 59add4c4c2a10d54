"""When an engine counts as stuck, on a clock of our own."""

from __future__ import annotations

from engines import wire
from gateway.supervisor.watch import HANDSHAKE_TIMEOUT_S, HEARTBEAT_TIMEOUT_S, Patience, Watch

PATIENCE = Patience(load_timeout_s=50, hang_timeout_s=30, first_step_timeout_s=100)
NO_HEARTBEAT = "the engine process sent no heartbeat for 15 s"
NO_PROGRESS = "the model made no progress for 30 s with requests running"
NO_FIRST_STEP = "the model made no progress for 100 s with requests running"


def beat(steps: int) -> wire.Heartbeat:
    return wire.Heartbeat(steps, "step", wire.Memory(), 0, 0, wire.PromptCacheStats())


def beats(watch: Watch, steps: int, since: int, until: int) -> None:
    """A heartbeat every second, with the work thread at the same step all the time."""
    for now in range(since, until + 1):
        watch.on_heartbeat(now, beat(steps))


def ready(now: float = 0) -> Watch:
    watch = Watch(PATIENCE, now)
    watch.on_hello(now)
    watch.on_ready(now)
    return watch


def test_a_process_that_never_says_hello() -> None:
    watch = Watch(PATIENCE, 10)
    assert watch.deadline() == 10 + HANDSHAKE_TIMEOUT_S
    assert watch.overdue(10 + HANDSHAKE_TIMEOUT_S - 1) is None
    verdict = watch.overdue(10 + HANDSHAKE_TIMEOUT_S)
    assert verdict == "the engine did not start within 60 s"


def test_a_frozen_process_sends_no_heartbeat() -> None:
    for watch in (ready(), loading()):
        watch.on_heartbeat(3, beat(1))
        assert watch.deadline() == 3 + HEARTBEAT_TIMEOUT_S
        assert watch.overdue(17.9) is None
        assert watch.overdue(18) == NO_HEARTBEAT


def loading() -> Watch:
    watch = Watch(PATIENCE, 0)
    watch.on_hello(0)
    return watch


def test_a_load_may_take_long_as_long_as_it_gets_on() -> None:
    watch = loading()
    for now in range(0, 1000, 10):
        watch.on_loading(now)
        beats(watch, now, now, now + 9)
        assert watch.overdue(now + 9) is None


def test_a_load_without_progress_is_stuck() -> None:
    watch = loading()
    beats(watch, 1, 0, 49)
    assert watch.overdue(49) is None
    beats(watch, 1, 50, 50)
    assert watch.overdue(50) == "the load made no progress for 50 s"


def test_an_idle_model_is_never_stuck() -> None:
    watch = ready()
    beats(watch, 1, 1, 1000)
    assert watch.overdue(1000) is None
    assert watch.deadline() == 1000 + HEARTBEAT_TIMEOUT_S


def test_the_first_step_has_its_own_patience() -> None:
    watch = ready()
    beats(watch, 1, 1, 1000)
    watch.on_call(1000)
    beats(watch, 1, 1001, 1099)
    assert watch.overdue(1099) is None
    assert watch.overdue(1100) == NO_FIRST_STEP


def test_a_step_without_end_is_stuck() -> None:
    watch = ready()
    watch.on_call(0)
    beats(watch, 1, 1, 1)
    beats(watch, 2, 2, 31)
    assert watch.overdue(31) is None
    beats(watch, 2, 32, 32)
    assert watch.overdue(32) == NO_PROGRESS


def test_a_call_that_the_work_thread_never_took_counts_as_work() -> None:
    """The heartbeat says that nothing runs, because what is stuck is what would say more."""
    watch = ready()
    beats(watch, 1, 1, 1)
    beats(watch, 2, 2, 100)
    watch.on_call(100)
    beats(watch, 2, 101, 130)
    assert watch.overdue(129) is None
    assert watch.overdue(130) == NO_PROGRESS


def test_time_spent_idle_is_not_held_against_the_next_call() -> None:
    watch = ready()
    beats(watch, 1, 1, 1)
    beats(watch, 2, 2, 500)
    watch.on_call(500)
    assert watch.overdue(500) is None
    watch.on_call(520)  # a second call gives the first no more time
    beats(watch, 2, 501, 530)
    assert watch.overdue(530) == NO_PROGRESS


def test_once_the_last_call_is_over_nothing_is_expected() -> None:
    watch = ready()
    watch.on_call(0)
    watch.on_call(0)
    beats(watch, 1, 1, 20)
    watch.on_call_over()
    assert watch.deadline() == 35
    beats(watch, 1, 21, 99)
    watch.on_call_over()
    beats(watch, 1, 100, 200)
    assert watch.overdue(200) is None


def test_every_step_starts_the_patience_anew() -> None:
    watch = ready()
    watch.on_call(0)
    for step in range(1, 100):
        beats(watch, step, step * 20, step * 20 + 19)
        assert watch.overdue(step * 20 + 19) is None


def test_a_hang_timeout_longer_than_that_of_the_first_step_counts_for_both() -> None:
    watch = Watch(Patience(hang_timeout_s=200, first_step_timeout_s=100), 0)
    watch.on_hello(0)
    watch.on_ready(0)
    watch.on_call(0)
    beats(watch, 1, 1, 199)
    assert watch.overdue(199) is None
    beats(watch, 1, 200, 201)
    assert watch.overdue(201) is not None


def test_waiting_for_a_turn_is_not_standing_still() -> None:
    watch = ready()
    watch.on_call(0)
    beats(watch, 1, 1, 1)
    beats(watch, 2, 2, 20)
    watch.on_turn_wanted()
    beats(watch, 2, 21, 500)
    assert watch.overdue(500) is None
    assert watch.deadline() == 500 + HEARTBEAT_TIMEOUT_S
    watch.on_turn(500)
    beats(watch, 2, 501, 530)
    assert watch.overdue(529) is None
    assert watch.overdue(530) == NO_PROGRESS


def test_an_engine_that_waits_for_a_turn_has_to_be_alive() -> None:
    watch = ready()
    watch.on_call(0)
    watch.on_turn_wanted()
    watch.on_heartbeat(3, beat(1))
    assert watch.overdue(18) == NO_HEARTBEAT


def test_patience_that_changes_counts_for_what_goes_on() -> None:
    watch = ready()
    watch.on_call(0)
    beats(watch, 1, 1, 1)
    beats(watch, 2, 2, 20)
    watch.be(Patience(hang_timeout_s=10))
    beats(watch, 2, 21, 21)
    assert watch.overdue(21) is not None


def test_who_wants_its_turn_no_more_has_to_get_on_again() -> None:
    watch = ready()
    watch.on_call(0)
    beats(watch, 1, 1, 1)
    beats(watch, 2, 2, 20)
    watch.on_turn_wanted()
    watch.on_turn(40)
    beats(watch, 2, 41, 70)
    assert watch.overdue(70) == NO_PROGRESS
