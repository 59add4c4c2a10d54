"""Everybody who waits, in the order in which they are served.

Priority first, then arrival; who has waited longer than `max_wait_s` precedes every class. Owned
by the scheduler. A waiter is in the queue from its request until it is granted, refused or gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.residency.effects import Phase
from gateway.residency.specs import Priority


@dataclass(slots=True)
class Waiter:
    """One request without a lease, or (`request_id` None) an operator's wish for a load.

    `deadline` is when it is refused; time spent loading its model moves it. See `Request` for
    `keep_alive_s` and `may_evict`; a wish that may not evict comes after everybody else.
    """

    request_id: int | None
    model: str
    priority: Priority
    seq: int
    arrived: float
    deadline: float
    phase: Phase | None = None
    keep_alive_s: float | None = None
    may_evict: bool = True

    def starved(self, now: float, max_wait_s: float) -> bool:
        return self.request_id is not None and now >= self.arrived + max_wait_s

    def rank(self, now: float, max_wait_s: float) -> tuple[int, int, int]:
        """Sort key: smaller is served first."""
        if self.starved(now, max_wait_s):
            return (0, 0, self.seq)
        if self.request_id is None and not self.may_evict:
            return (2, 0, self.seq)
        return (1, self.priority, self.seq)


@dataclass(slots=True)
class WaitQueue:
    max_wait_s: float
    _by_id: dict[int, Waiter] = field(default_factory=dict)
    _by_model: dict[str, list[Waiter]] = field(default_factory=dict)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[Waiter]:
        """In order of arrival."""
        return iter(list(self._by_id.values()))

    def add(self, waiter: Waiter) -> None:
        if waiter.request_id is None:
            raise ValueError("only requests are queued")
        self._by_id[waiter.request_id] = waiter
        self._by_model.setdefault(waiter.model, []).append(waiter)

    def remove(self, request_id: int) -> Waiter | None:
        """The waiter that left; None when it was not here."""
        waiter = self._by_id.pop(request_id, None)
        if waiter is not None:
            self._by_model[waiter.model].remove(waiter)
        return waiter

    def of(self, model: str) -> list[Waiter]:
        """The model's waiters in order of arrival; a copy."""
        return list(self._by_model.get(model, ()))

    def count(self, model: str) -> int:
        return len(self._by_model.get(model, ()))

    def head(self, model: str, now: float) -> Waiter | None:
        """Who is served next by this model."""
        waiting = self._by_model.get(model)
        if not waiting:
            return None
        return min(waiting, key=lambda waiter: waiter.rank(now, self.max_wait_s))
