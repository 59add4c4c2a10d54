"""Residency decides which model is loaded, which leaves and who is served. It does nothing itself.

`Scheduler` owns all state and is fed events one at a time by the supervisor; every method takes
the monotonic time and returns the effects to execute, in order.
"""

from gateway.residency.effects import (
    CancelLeases,
    CancelLoad,
    Effect,
    Forgotten,
    Grant,
    Phase,
    Reject,
    SetLimits,
    SetTimer,
    StartLoad,
    Stop,
    StopReason,
    Transition,
    Waiting,
)
from gateway.residency.explain import Ceiling, Explanation, Occupant
from gateway.residency.scheduler import Scheduler
from gateway.residency.snapshot import LedgerView, ModelView, Snapshot, WaiterView
from gateway.residency.specs import (
    FOREVER,
    ModelSpec,
    Policy,
    Pressure,
    Priority,
    RegistryDiff,
    Request,
    Strategy,
)
from gateway.residency.states import IllegalTransition, State

__all__ = [
    "FOREVER",
    "CancelLeases",
    "CancelLoad",
    "Ceiling",
    "Effect",
    "Explanation",
    "Forgotten",
    "Grant",
    "IllegalTransition",
    "LedgerView",
    "ModelSpec",
    "ModelView",
    "Occupant",
    "Phase",
    "Policy",
    "Pressure",
    "Priority",
    "RegistryDiff",
    "Reject",
    "Request",
    "Scheduler",
    "SetLimits",
    "SetTimer",
    "Snapshot",
    "StartLoad",
    "State",
    "Stop",
    "StopReason",
    "Strategy",
    "Transition",
    "WaiterView",
    "Waiting",
]
