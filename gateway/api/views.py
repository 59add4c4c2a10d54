"""One model's state as routes and events show it, on the clock of the reader."""

from __future__ import annotations

import time
from typing import Any

from gateway.residency import ModelView
from gateway.supervisor.supervisor import Supervisor


def view_of(supervisor: Supervisor, name: str) -> ModelView:
    """The model with this registry name, which a variant has not. Raises `StopIteration`."""
    return next(view for view in supervisor.snapshot().models if view.name == name)


def unix_time(moment: float | None) -> float | None:
    """A moment on the monotonic clock as seconds since 1970, to the millisecond."""
    return None if moment is None else round(time.time() + moment - time.monotonic(), 3)


def state_of(view: ModelView) -> dict[str, Any]:
    """What an operator wants to know at a glance; bytes, and seconds since 1970."""
    return {
        "model": view.name,
        "state": view.state,
        "reason": view.reason,
        "leases": view.running,
        "waiting": view.waiting,
        "load_done": view.load_done,
        "load_total": view.load_total,
        "pinned": view.pinned,
        "pinned_until": unix_time(view.pinned_until),
        "retry_at": unix_time(view.failed_until),
    }
