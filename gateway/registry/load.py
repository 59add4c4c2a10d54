"""The registry file to what the gateway serves, with everything that is wrong in one go.

Start, reload and `check` all come through `load`. It reads files and nothing else: the
environment and the machine are passed in, and it raises only what is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.registry import keys, rules, units
from gateway.registry.find import Model, find, variant
from gateway.registry.problems import Problem
from gateway.registry.remembered import Remembered
from gateway.registry.room import room_warnings
from gateway.registry.schema import Registry
from gateway.registry.walk import TooManyProblems, Walk
from gateway.registry.warm import prompts_of
from gateway.registry.yaml_tree import MAX_BYTES, TreeError, compose

__all__ = ["Loaded", "Machine", "Model", "Problem", "load", "parse"]


class Machine(Protocol):
    """The memory of this machine, and the most of it that models can be given."""

    @property
    def total_bytes(self) -> int: ...
    @property
    def ceiling_bytes(self) -> int: ...


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """`registry` is None when there is an error, and then there are no models either.

    The budgets are what was asked for and what counts on this machine; None when that is `auto`
    and the machine is not known. Entries of `registry` have defaults merged, those of `models`
    their kind detected too. `text` is the file that was read.
    """

    registry: Registry | None = None
    models: tuple[Model, ...] = ()
    configured_budget_bytes: int | None = None
    budget_bytes: int | None = None
    problems: tuple[Problem, ...] = ()
    text: bytes = b""

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.level == "error")


def load(
    path: Path,
    *,
    environ: Mapping[str, str],
    machine: Machine | None = None,
    base: Path | None = None,
    remembered: Remembered | None = None,
) -> Loaded:
    """Reads, checks and completes the registry at `path`.

    Relative paths in it count from `base`, which is its own folder unless given. `remembered` are
    the sizes that earlier loads measured: warnings about room go by them.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        return Loaded(problems=(Problem("error", str(path), 0, "", message),))
    return parse(
        data,
        file=str(path),
        base=base or path.parent,
        environ=environ,
        machine=machine,
        remembered=remembered,
    )


def parse(
    data: bytes,
    *,
    file: str,
    base: Path,
    environ: Mapping[str, str],
    machine: Machine | None = None,
    remembered: Remembered | None = None,
) -> Loaded:
    """As `load`, for text at hand; relative paths in it count from `base`."""
    walk = Walk(file, environ)
    try:
        root = compose(data)
        registry = Registry() if root is None else walk.struct(root, Registry, "")
        rules.check(walk, registry)
        registry = keys.settled(walk, registry, base, environ)
    except TreeError as error:
        walk.problems.append(Problem("error", file, error.line, "", error.message))
        return Loaded(problems=tuple(walk.problems))
    except TooManyProblems:
        walk.problems.append(Problem("error", file, 0, "", "there are more problems than these"))
        return Loaded(problems=tuple(walk.problems))
    if any(problem.level == "error" for problem in walk.problems):
        return Loaded(problems=_sorted(walk.problems))
    registry = rules.merged(walk, registry)
    models = _models(walk, registry, base.absolute(), environ)
    budget = _budget(walk, registry, machine)
    if budget is not None:
        for key, message in room_warnings(models, budget, remembered):
            walk.report("warning", key, message)
    if not models:
        walk.report("warning", "models", "no models: nothing can be served")
    asked = registry.manager.memory_budget_gb
    return Loaded(
        registry=registry,
        models=models,
        configured_budget_bytes=budget if asked == "auto" else units.gib(asked),
        budget_bytes=budget,
        problems=_sorted(walk.problems),
        text=data,
    )


def _sorted(problems: list[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.line))


def _models(
    walk: Walk, registry: Registry, base: Path, environ: Mapping[str, str]
) -> tuple[Model, ...]:
    found: dict[str, Model] = {}
    for index, entry in enumerate(registry.models):
        if entry.of is None:
            model = find(entry, base=base, environ=environ)
            _check_model(walk, f"models[{index}]", model)
            warm, problem = prompts_of(entry, base=base, environ=environ)
            if problem is not None:
                walk.report("warning", f"models[{index}].warm_prompts", problem)
            found[entry.name] = msgspec.structs.replace(model, warm=warm)
    models = []
    for entry in registry.models:
        if entry.of is None:
            models.append(found[entry.name])
        else:
            models.append(variant(entry, found[entry.of]))
    return tuple(models)


def _check_model(walk: Walk, key: str, model: Model) -> None:
    entry, size = model.entry, model.size
    if model.unavailable is not None:
        origin = next(
            (name for name in ("path", "source", "model") if getattr(entry, name)), "name"
        )
        walk.report("warning", f"{key}.{origin}", f"unavailable: {model.unavailable}")
    if size is None or entry.engine == "scripted":
        return
    estimate = entry.estimated_memory_gb
    if estimate is not None and units.gib(estimate) < size.weights_bytes:
        walk.report(
            "warning",
            f"{key}.estimated_memory_gb",
            f"lower than the {units.format_size(size.weights_bytes)} of weights on disk, "
            "which count instead",
        )
    asked, own = entry.context_length, size.context_length
    if asked is not None and own is not None and asked > own:
        walk.report("warning", f"{key}.context_length", f"the model was made for {own} tokens")


def _budget(walk: Walk, registry: Registry, machine: Machine | None) -> int | None:
    """The budget in bytes; scripted engines take no memory, so only theirs is never clamped."""
    asked = registry.manager.memory_budget_gb
    scripted = bool(registry.models) and all(
        entry.engine == "scripted" for entry in registry.models
    )
    if asked != "auto" and (machine is None or scripted):
        return units.gib(asked)
    if machine is None:
        return None
    budget, warning = units.budget_bytes(
        registry.manager, machine.total_bytes, machine.ceiling_bytes
    )
    if warning is not None:
        walk.report("warning", "manager.memory_budget_gb", warning)
    return budget
