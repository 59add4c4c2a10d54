"""What a budget cannot hold: a model, the pinned ones, the preloaded ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.registry.find import Model
from gateway.registry.limits import limits
from gateway.registry.remembered import Remembered
from gateway.registry.units import format_size


def room_warnings(
    models: tuple[Model, ...], budget: int, remembered: Remembered | None = None
) -> Iterator[tuple[str, str]]:
    """Key path and message of each thing that will not work as the file suggests.

    Models without a size are left out: they are unavailable, which is a warning of its own.
    """
    charges = {
        index: limits(model, budget, remembered.get(model) if remembered else None).charge_bytes
        for index, model in enumerate(models)
        if model.entry.of is None and model.size is not None
    }
    of_budget = f"the budget of {format_size(budget)}"
    for index, charge in charges.items():
        if charge > budget:
            yield (
                f"models[{index}]",
                f'"{models[index].entry.name}" needs {format_size(charge)}, more than '
                f"{of_budget}; requests for it are refused",
            )
    fitting = {index: charge for index, charge in charges.items() if charge <= budget}
    yield from _pinned(models, fitting, budget, of_budget)
    preload = [index for index in fitting if models[index].entry.preload]
    wanted = sum(fitting[index] for index in preload)
    if wanted > budget:
        yield (
            f"models[{preload[-1]}].preload",
            f"the models to preload need {format_size(wanted)}, more than {of_budget}; "
            "not all of them stay loaded",
        )


def _pinned(
    models: tuple[Model, ...], charges: dict[int, int], budget: int, of_budget: str
) -> Iterator[tuple[str, str]]:
    pinned = {i: charge for i, charge in charges.items() if models[i].entry.pin}
    if not pinned:
        return
    taken = sum(pinned.values())
    others = [
        models[i].entry.name
        for i, charge in charges.items()
        if i not in pinned and taken + charge > budget
    ]
    names = ", ".join(models[i].entry.name for i in pinned)
    key = f"models[{max(pinned)}].pin"
    said = f"the pinned models ({names}) take {format_size(taken)}"
    if taken > budget:
        yield key, f"{said}, more than {of_budget}; not all of them can be loaded"
    elif others:
        yield key, f"{said} of {of_budget} and leave no room for {', '.join(others)}"
