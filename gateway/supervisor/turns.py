"""Who may take in a long prompt now: a few engines at a time, so that the others' calls go on.

`Turns` decides and is pure: every method is told the time, and returns whose turn it is now.
`TurnDesk` carries that out, with the one timer there is.

First come, first served. A turn that is not given back within `TURN_S` stays with its engine, which
is in the middle of its work, but counts no more once somebody else waits: an endless prompt costs
the others speed, not their turn. So nobody waits for longer than `TURN_S` for each that is ahead.

Invariant: an engine is in one of the three places, holding, late or waiting, or in none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("gateway.turns")

TURN_S = 20.0


@dataclass(frozen=True, slots=True)
class Granted:
    name: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class TurnsView:
    """For status: engines by name, those that wait in their order. 0 slots is any number."""

    slots: int
    holding: tuple[str, ...]
    late: tuple[str, ...]
    waiting: tuple[str, ...]


class Turns:
    """Lends `slots` turns, any number where that is 0. Times are in seconds, on one clock."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._holding: dict[str, float] = {}
        self._late: set[str] = set()
        self._waiting: dict[str, float] = {}

    def want(self, now: float, name: str) -> list[Granted]:
        """Queues an engine; one that waits already keeps its place, one that holds gives back."""
        self._holding.pop(name, None)
        self._late.discard(name)
        self._waiting.setdefault(name, now)
        return self._grants(now)

    def over(self, now: float, name: str) -> list[Granted]:
        """An engine is done, or gone."""
        self._holding.pop(name, None)
        self._late.discard(name)
        self._waiting.pop(name, None)
        return self._grants(now)

    def lend(self, now: float, slots: int) -> list[Granted]:
        """Changes how many there are; turns that are held stay so."""
        self._slots = slots
        return self._grants(now)

    def tick(self, now: float) -> list[Granted]:
        """Has to be called at `deadline`."""
        return self._grants(now)

    @property
    def deadline(self) -> float | None:
        """When the next turn is lent on at the latest; None while nobody waits."""
        return min(self._holding.values()) + TURN_S if self._waiting else None

    def view(self) -> TurnsView:
        return TurnsView(
            self._slots, tuple(self._holding), tuple(sorted(self._late)), tuple(self._waiting)
        )

    def _grants(self, now: float) -> list[Granted]:
        granted = []
        for name, since in list(self._waiting.items()):
            if not self._room(now):
                break
            del self._waiting[name]
            self._holding[name] = now
            granted.append(Granted(name, now - since))
        return granted

    def _room(self, now: float) -> bool:
        """Whether one can be lent, if need be instead of one that was held for too long."""
        if not self._slots:
            return True
        for name, since in list(self._holding.items()):  # the longest held comes first
            if len(self._holding) >= self._slots and now >= since + TURN_S:
                del self._holding[name]
                self._late.add(name)
        return len(self._holding) < self._slots


class TurnDesk:
    """Grants turns by calling `grant` with an engine's name and how long it waited, in seconds."""

    def __init__(self, slots: int, grant: Callable[[str, float], None]) -> None:
        self._turns = Turns(slots)
        self._grant = grant
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def want(self, name: str) -> None:
        self._carry_out(self._turns.want(self._loop.time(), name))

    def over(self, name: str) -> None:
        self._carry_out(self._turns.over(self._loop.time(), name))

    def lend(self, slots: int) -> None:
        self._carry_out(self._turns.lend(self._loop.time(), slots))

    def view(self) -> TurnsView:
        return self._turns.view()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _carry_out(self, grants: list[Granted]) -> None:
        self.close()
        deadline = self._turns.deadline
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_timer)
        for granted in grants:
            log.debug("model %s: a long prompt begins after %.3f s", granted.name, granted.waited_s)
            self._grant(granted.name, granted.waited_s)

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out(self._turns.tick(self._loop.time()))
