"""The transition table, walked pair by pair."""

from __future__ import annotations

import itertools

import pytest

from gateway.residency import IllegalTransition, ModelSpec, State, Transition
from gateway.residency.slot import Slot
from gateway.residency.states import ALIVE, COLD, TRANSITIONS, advance

ALLOWED = {
    # a load, however it ends
    (State.UNLOADED, State.LOADING),
    (State.FAILED, State.LOADING),
    (State.LOADING, State.READY),
    (State.LOADING, State.FAILED),
    (State.LOADING, State.UNLOADING),
    # leaving, at once or after its leases; a preemption can be called off
    (State.READY, State.UNLOADING),
    (State.READY, State.DRAINING),
    (State.DRAINING, State.UNLOADING),
    (State.DRAINING, State.READY),
    (State.UNLOADING, State.UNLOADED),
    # a registry that takes its files away, or brings them back, or changes what has failed
    (State.UNLOADED, State.UNAVAILABLE),
    (State.FAILED, State.UNAVAILABLE),
    (State.FAILED, State.UNLOADED),
    (State.UNAVAILABLE, State.UNLOADED),
    # crashes
    (State.READY, State.FAILED),
    (State.DRAINING, State.FAILED),
}


@pytest.mark.parametrize(("frm", "to"), list(itertools.product(State, State)))
def test_every_pair(frm: State, to: State) -> None:
    slot = Slot(ModelSpec("A", 1), frm)
    if (frm, to) in ALLOWED:
        assert advance("A", frm, to) is to
        assert slot.advance(to, "why") == Transition("A", frm, to, "why")
        assert slot.state is to
    else:
        with pytest.raises(IllegalTransition, match=f"'A' cannot go from {frm} to {to}"):
            slot.advance(to, "why")
        assert slot.state is frm, "a refused transition changes nothing"


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(State)


def test_a_model_with_a_process_cannot_load() -> None:
    assert all(State.LOADING not in TRANSITIONS[state] for state in ALIVE)


def test_a_request_finds_a_model_ready_loading_cold_or_impossible() -> None:
    assert set(State) - COLD == {State.READY, State.LOADING, State.UNAVAILABLE}
