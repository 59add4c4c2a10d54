"""An engine's turn to do long work that slows down every model beside it, such as a long prefill.

The gateway lends few turns at a time to all engines together. An engine has at most one, for one
piece of work; what is short needs none and goes on meanwhile. The work thread owns it.

How long a wait can be is the gateway's promise: it lends a turn on after a while even where it is
not given back, and grants one to whoever has waited longest. An engine needs no timer: the link
loses no frames, and an engine that loses its link ends.

`TurnOver` gives back a turn, or the place of one who waits. A `Turn` that crosses it is dropped or,
where another call wants one by then, taken: that one begins a little early, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from engines import wire

LONG = 512
"""Prompt tokens, not cached, from which on a prefill needs a turn."""


class PrefillTurn:
    """Asks for turns, and knows for which call. Calls are told apart by their ids."""

    def __init__(self, emit: Callable[[wire.WantTurn | wire.TurnOver], None]) -> None:
        self._emit = emit
        self._wanted_by: int | None = None
        self._granted = False

    @property
    def holder(self) -> int | None:
        """The call whose turn it is now."""
        return self._wanted_by if self._granted else None

    def ready(self, call_id: int, tokens: int) -> bool:
        """Whether a call may take in `tokens` now; asks for a turn when it needs one.

        False while the turn is another's, or has not come: then ask again after `take`.
        """
        if tokens < LONG:
            return True
        if self._wanted_by is None:
            self._wanted_by = call_id
            self._emit(wire.WantTurn(tokens))
        return self.holder == call_id

    def take(self) -> None:
        """The gateway has granted the turn."""
        self._granted = self._wanted_by is not None

    def over(self, call_id: int) -> None:
        """A call's long work is done, or no longer wanted; for every other call it does nothing."""
        if self._wanted_by == call_id:
            self._wanted_by, self._granted = None, False
            self._emit(wire.TurnOver())
