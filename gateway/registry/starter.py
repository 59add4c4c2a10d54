"""A first registry, from the models that are on this machine. Pure but for `local_models`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.registry.find import Model, find, hub_cache
from gateway.registry.limits import limits
from gateway.registry.schema import Entry
from gateway.registry.units import format_size

MOST_MODELS = 64

_HEAD = """\
# Models and how they share this machine. `mlx-gateway check` tells what is wrong with this file;
# a running gateway takes over what you change as soon as you save.

manager:
  memory_budget_gb: auto        # or a number: memory for all models together, in GiB
  contention_policy:
    strategy: wait_then_fail    # what happens when there is no room and nothing idle

models:
"""
_NOTHING = """\
  # No model that fits was found here. Give a folder with an MLX model ...
  # - name: my-model
  #   path: ~/models/my-model
  # ... or the Hugging Face id of one in the local cache (serving never downloads):
  # - name: qwen
  #   model: mlx-community/Qwen3-4B-4bit
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model of this machine: as `model` (an id) or `path` (a folder), and what it needs."""

    key: str
    value: str
    model: Model
    needs_bytes: int


def local_models(
    folders: Sequence[Path], environ: Mapping[str, str], budget_bytes: int
) -> list[Candidate]:
    """Every model in the local Hugging Face cache and in `folders`, themselves or one level down.

    Folders without usable weights are left out.
    """
    found = []
    for key, value in (*_cached(hub_cache(environ)), *_folders(folders)):
        entry = Entry(name=value, path=value) if key == "path" else Entry(name=value, model=value)
        model = find(entry, base=Path("/"), environ=environ)
        if model.unavailable is None and model.size is not None:
            charge = limits(model, budget_bytes).charge_bytes
            found.append(Candidate(key, value, model, charge))
    return found


def _cached(cache: Path) -> Iterator[tuple[str, str]]:
    for folder in sorted(cache.glob("models--*"))[: 4 * MOST_MODELS]:
        yield "model", folder.name.removeprefix("models--").replace("--", "/")


def _folders(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        inside = sorted(path.parent for path in folder.glob("*/config.json"))
        for path in ([folder] if (folder / "config.json").exists() else inside)[:MOST_MODELS]:
            yield "path", str(path.absolute())


def starter(candidates: Sequence[Candidate], budget_bytes: int) -> str:
    """The text of a registry with the candidates that fit, the smallest first."""
    fitting = sorted(
        (each for each in candidates if each.needs_bytes <= budget_bytes),
        key=lambda each: each.needs_bytes,
    )[:MOST_MODELS]
    if not fitting:
        return _HEAD + _NOTHING
    taken: set[str] = set()
    return _HEAD + "".join(_entry(each, taken) for each in fitting)


def _entry(candidate: Candidate, taken: set[str]) -> str:
    kind = candidate.model.entry.kind
    return (
        f"  - name: {json.dumps(_name(candidate, taken))}\n"
        f"    {candidate.key}: {json.dumps(candidate.value)}"
        f"    # {kind}, needs {format_size(candidate.needs_bytes)}\n"
    )


def _name(candidate: Candidate, taken: set[str]) -> str:
    """The last part in lower case, with a number where it is taken."""
    last = candidate.value.rstrip("/").rsplit("/", 1)[-1].lower()
    base = re.sub(r"[^a-z0-9._-]+", "-", last).strip("-.") or "model"
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    taken.add(name)
    return name
