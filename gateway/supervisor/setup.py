"""What a registry asks of the supervisor, and what a request asks of residency. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.registry.find import Model
from gateway.registry.limits import limits
from gateway.registry.remembered import Remembered
from gateway.residency import Policy, Priority
from gateway.supervisor.prompt_folders import disk_cache
from gateway.supervisor.slot import Terms
from gateway.supervisor.watch import Patience


@dataclass(frozen=True, slots=True)
class Setup:
    """What a registry asks of the supervisor: its models and the rules between them."""

    models: tuple[Model, ...]
    policy: Policy
    patience: Patience
    standby: int = 0
    prefill_slots: int = 1
    prompts: Path | None = None
    """The folder of what models keep of prompts on disk."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks of residency beside its model; see `residency.Request`.

    `granted` goes before the model's own priority; `priority` can only lower either.
    """

    priority: Priority | None = None
    keep_alive_s: float | None = None
    may_evict: bool = True
    granted: Priority | None = None


PLAIN = Wish()


def terms_of(setup: Setup, sizes: Remembered) -> Iterator[Terms]:
    """Of every model that has a process of its own."""
    for model in setup.models:
        if model.entry.of is None:  # a variant is served by its base
            known = sizes.get(model)
            reservation = limits(model, setup.policy.budget_bytes, known)
            load_s, disk = known.load_s if known else None, disk_cache(setup.prompts, model)
            yield Terms(model, reservation, setup.patience, load_s, disk)


def warmed_by(model: Model) -> tuple[object, ...]:
    """What its warm prompts are made of."""
    return model.warm, model.entry.chat_template_kwargs
