"""What the scheduler decides, as values for the supervisor to execute in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from gateway.errors import Refusal
from gateway.residency.states import State

StopReason = Literal["evicted", "ttl", "requested", "preempted", "pressure", "overrun", "reload"]


class Phase(StrEnum):
    """What a waiter waits for."""

    ROOM = "room"
    """Memory, a load slot or a place in a busy model: it can still be refused."""
    LOADING = "loading"
    """Its model loads: it will be served unless the load fails."""


@dataclass(frozen=True, slots=True)
class StartLoad:
    """Start a process and load the model; `charge_bytes` are reserved from this moment.

    Answer with `on_ready`, or with `on_load_failed` once the process has been reaped.
    """

    model: str
    charge_bytes: int


@dataclass(frozen=True, slots=True)
class CancelLoad:
    """End a load nobody needs. Answer with `on_exited` (or `on_load_failed`) once it is reaped.

    An `on_ready` that crosses it is ignored.
    """

    model: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process of a model without leases. Answer with `on_exited` once it is reaped."""

    model: str
    reason: StopReason


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Give a living engine its present limits, with this one for the prompt cache.

    Later footprints show the effect. The other limits are those of the model's newest spec.
    """

    model: str
    prompt_cache_bytes: int


@dataclass(frozen=True, slots=True)
class CancelLeases:
    """End these running calls with `reason`. Each is answered by its own `on_released`."""

    model: str
    request_ids: tuple[int, ...]
    reason: Refusal


@dataclass(frozen=True, slots=True)
class Grant:
    """The request holds a lease on a ready model until `on_released`."""

    request_id: int
    model: str


@dataclass(frozen=True, slots=True)
class Reject:
    """The request is over; it never got a lease."""

    request_id: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request has been queued, or what it waits for has changed."""

    request_id: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `on_tick` at this moment and no other; replaces the timer before it, None stops it."""

    at: float | None


@dataclass(frozen=True, slots=True)
class Transition:
    """A model changed its state; for log, events and metrics, nothing to execute."""

    model: str
    frm: State
    to: State
    cause: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A model that a new registry has removed has no process any more: drop what is kept for it.

    Not emitted when the name has come back in the meantime.
    """

    model: str


Effect = (
    StartLoad
    | CancelLoad
    | Stop
    | SetLimits
    | CancelLeases
    | Grant
    | Reject
    | Waiting
    | SetTimer
    | Transition
    | Forgotten
)
