"""An `Explanation` for programs and, in one sentence, for people. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from gateway.residency import Explanation, State
from gateway.residency.text import size

CEILINGS = {
    "budget": "the memory budget (manager.memory_budget_gb)",
    "load_concurrency": "how many models may load at once (manager.load_concurrency)",
    "max_engines": "how many models may be loaded at once (manager.max_engines)",
    "pressure": "memory pressure that the system reports",
    "stranded": "memory that ended models have not given back yet",
}


def body_of(explanation: Explanation) -> dict[str, Any]:
    """Every figure, the refusal as a client would get it, and `sentence`."""
    body = dataclasses.asdict(dataclasses.replace(explanation, refusal=None))
    refusal = explanation.refusal
    if refusal is not None:
        body["refusal"] = {
            "code": refusal.kind.code,
            "status": refusal.kind.status,
            "message": refusal.message,
            "retry_after_s": refusal.retry_after_s,
        }
    return {**body, "sentence": sentence(explanation)}


def sentence(e: Explanation) -> str:
    """What a request would meet now, and what decides it."""
    if e.refusal is not None:
        return f"A request now would be refused ({e.refusal.kind.code}): {e.refusal.message}"
    subject = f"Model {e.model!r}"
    if e.state is State.READY:
        return f"{subject} is ready: a request now would be {_when_served(e)}."
    if e.state is State.LOADING:
        return f"{subject} is loading: a request now would be served when it is ready{_load(e)}."
    if e.expected_wait_s is None:
        return f"{subject} is {e.state} and needs {size(e.needs_bytes)}: {_blocked(e)}."
    return f"{subject} is {e.state} and needs {size(e.needs_bytes)}: {_start(e)}{_load(e)}."


def _when_served(e: Explanation) -> str:
    if e.expected_wait_s == 0:
        return "served at once"
    behind = f", behind {_requests(len(e.ahead))}" if e.ahead else ""
    return f"queued until a running call ends{behind}"


def _start(e: Explanation) -> str:
    """How its load begins."""
    wait = e.expected_wait_s or 0
    when = f"after about {max(1, round(wait))} s, held back by {_limit(e)}" if wait else "at once"
    room = [f"{_names(e.leaves)} would leave"] if e.leaves else []
    room += [f"{_names(e.shrinks)} would lose its prompt cache"] if e.shrinks else []
    if not room:
        fits = f", as {size(e.available_bytes)} of {size(e.budget_bytes)} are free"
        return f"its load would start {when}{'' if wait else fits}"
    return f"its load would start {when}; for it {' and '.join(room)}"


def _blocked(e: Explanation) -> str:
    """A request may wait, and nobody can tell for how long."""
    occupants = [f"{o.model!r} is {_prospect(o.state, o.why)}" for o in e.occupants]
    ways = f"; {', '.join(occupants)}" if occupants else ""
    ahead = f", behind {_requests(len(e.ahead))}" if e.ahead else ""
    wait = f"a request now would wait{ahead} (policy {e.strategy})"
    return f"{wait}; what is in the way is {_limit(e)}{ways}"


def _limit(e: Explanation) -> str:
    return CEILINGS.get(e.ceiling, "what came before it")


def _prospect(state: State, why: str) -> str:
    return f"{state} ({why})"


def _load(e: Explanation) -> str:
    if e.expected_load_s is None:
        return ", and how long the load takes is not known yet"
    return f", and the load takes about {max(1, round(e.expected_load_s))} s"


def _names(models: tuple[str, ...]) -> str:
    return ", ".join(map(repr, models))


def _requests(count: int) -> str:
    return "1 other request" if count == 1 else f"{count} other requests"
