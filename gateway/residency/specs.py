"""What the scheduler is told: models, policy, requests. All of it is immutable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

Strategy = Literal["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
Pressure = Literal["normal", "warning", "critical"]

DERIVED: Final = -1.0
"""As a `Policy` duration: take the default that follows from the other settings."""

FOREVER: Final = -1.0
"""As a `keep_alive_s`: until the room is needed or somebody unloads it."""


class Priority(IntEnum):
    """Smaller goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model as the scheduler sees it.

    `charge_bytes` is the whole reservation while a process exists: weights, all limits and the
    process itself. `prompt_cache_bytes` is the part of it that `SetLimits` can give back.
    `max_queue` counts the waiters beyond those that `max_concurrency` would serve at once.
    `unavailable` is the reason why it cannot load, None when it can. `expected_load_s` is how long
    earlier loads took, None when nobody knows; only estimates are made of it.
    """

    name: str
    charge_bytes: int
    prompt_cache_bytes: int = 0
    max_concurrency: int = 8
    max_queue: int = 64
    priority: Priority = Priority.NORMAL
    pin: bool = False
    ttl_s: float | None = None
    unavailable: str | None = None
    expected_load_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            raise ValueError(f"model {self.name!r}: max_concurrency must be at least 1")
        if not 0 <= self.prompt_cache_bytes <= self.charge_bytes:
            raise ValueError(f"model {self.name!r}: prompt_cache_bytes must lie within the charge")


@dataclass(frozen=True, slots=True)
class Policy:
    """How contention is settled. Durations are in seconds, sizes in bytes.

    `max_wait_s` defaults to min(60, wait_timeout_s / 2), `min_resident_s` to min(10, max_wait_s).
    `drain_max_s` bounds how long running calls may take when an operator unloads their model, or
    a new registry removes or restarts it.
    """

    budget_bytes: int
    strategy: Strategy = "wait_then_fail"
    wait_timeout_s: float = 120.0
    preempt_after_s: float = 15.0
    max_wait_s: float = DERIVED
    min_resident_s: float = DERIVED
    load_concurrency: int = 1
    max_engines: int = 8
    preempt_grace_s: float = 2.0
    drain_max_s: float = 30.0

    def __post_init__(self) -> None:
        if self.load_concurrency < 1 or self.max_engines < 1:
            raise ValueError("load_concurrency and max_engines must be at least 1")
        if self.wait_timeout_s <= 0:
            raise ValueError("wait_timeout_s must be above 0; to refuse at once, use policy fail")
        if self.max_wait_s < 0:
            object.__setattr__(self, "max_wait_s", min(60.0, self.wait_timeout_s / 2))
        if self.min_resident_s < 0:
            object.__setattr__(self, "min_resident_s", min(10.0, self.max_wait_s))

    @property
    def preempts(self) -> bool:
        return self.strategy in ("preempt", "wait_then_preempt")


@dataclass(frozen=True, slots=True)
class Request:
    """A wish for a lease on a model. `id` is unique among all requests that have not ended.

    `priority` None takes the model's own. `keep_alive_s` replaces the model's TTL for the idle
    time that follows this lease: seconds, 0 to unload as soon as it is idle, `FOREVER` to let no
    TTL end it, None for the model's own; the lease released last decides. It protects nobody from
    being evicted when others need the room: that is what a pin is for. Without `may_evict` the
    request uses free room only, and is refused at once when others would have to leave for it.
    """

    id: int
    model: str
    priority: Priority | None = None
    keep_alive_s: float | None = None
    may_evict: bool = True

    def __post_init__(self) -> None:
        keep = self.keep_alive_s
        if keep is not None and keep != FOREVER and not keep >= 0:
            raise ValueError(
                f"keep_alive_s must be at least 0, or {FOREVER:g} for ever, not {keep}"
            )


@dataclass(frozen=True, slots=True)
class RegistryDiff:
    """A new registry: all its models in file order, and how they differ from the ones before.

    Names that were not there before are new, those that are missing are gone. `restarted` are the
    ones whose change needs a new process; every other known name is kept and takes its new spec
    at once. Raises `ValueError` when names are not unique or `restarted` names a stranger.
    """

    policy: Policy
    models: tuple[ModelSpec, ...]
    restarted: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        names = unique_names(self.models)
        strangers = sorted(self.restarted - names)
        if strangers:
            raise ValueError(f"to be restarted, but not in the registry: {', '.join(strangers)}")


def unique_names(models: Iterable[ModelSpec]) -> set[str]:
    """Raises `ValueError` when two models share a name."""
    names: set[str] = set()
    for spec in models:
        if spec.name in names:
            raise ValueError(f"two models are called {spec.name!r}")
        names.add(spec.name)
    return names
