"""The states of a model and the one table of what may follow what.

Nothing here holds state. A model changes state only through `advance`, which refuses every pair
that is not in `TRANSITIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a model is in its life; the value is what status and metrics show."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """Chosen to leave, still has leases, grants nothing new."""
    UNLOADING = "unloading"
    """Told to stop; its memory counts until the process is reaped."""
    FAILED = "failed"
    """Its last life ended by a fault; it may load again once its back-off is over."""
    UNAVAILABLE = "unavailable"
    """Cannot load until the operator changes something, such as a missing folder."""


TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.UNLOADED: frozenset({State.LOADING, State.UNAVAILABLE}),
        State.LOADING: frozenset({State.READY, State.UNLOADING, State.FAILED}),
        State.READY: frozenset({State.DRAINING, State.UNLOADING, State.FAILED}),
        State.DRAINING: frozenset({State.READY, State.UNLOADING, State.FAILED}),
        State.UNLOADING: frozenset({State.UNLOADED}),
        State.FAILED: frozenset({State.LOADING, State.UNLOADED, State.UNAVAILABLE}),
        State.UNAVAILABLE: frozenset({State.UNLOADED}),
    }
)

ALIVE = frozenset({State.LOADING, State.READY, State.DRAINING, State.UNLOADING})
"""States in which there is a process, and therefore a reservation."""

LEAVING = frozenset({State.DRAINING, State.UNLOADING})
"""States whose reservation comes back within a bounded time."""

COLD = LEAVING | {State.UNLOADED, State.FAILED}
"""States in which a request has to wait for a load that has not started."""


class IllegalTransition(Exception):
    """An event that cannot happen in this state: a bug of whoever reported it."""


def advance(model: str, frm: State, to: State) -> State:
    """`to`, if the table allows it after `frm`; raises `IllegalTransition` otherwise."""
    if to not in TRANSITIONS[frm]:
        raise IllegalTransition(f"model {model!r} cannot go from {frm} to {to}")
    return to
