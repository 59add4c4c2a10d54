"""Which models the demo serves, and the registry that makes them compete for memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.models import TEXT_MODELS
from demo.wheels import ModelError, cache_dir
from gateway.registry.find import find
from gateway.registry.limits import limits
from gateway.registry.schema import Entry

_HUB_FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*.txt")
_ANY_BUDGET = 2**50  # only what is left open follows from the budget
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Choice:
    """One model to serve: its files are on this disk. Without `kv_gb` the gateway decides."""

    name: str
    folder: Path
    kv_gb: float | None = None

    @property
    def weights_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))

    @property
    def charge_bytes(self) -> int:
        """What the gateway reserves for it: weights, KV, caches and the process itself."""
        entry = Entry(name=self.name, path=str(self.folder), kv_memory_gb=self.kv_gb)
        model = find(entry, base=self.folder, environ={})
        return limits(model, _ANY_BUDGET).charge_bytes


def choose(models: Sequence[str]) -> tuple[Choice, Choice]:
    """Two models: those asked for, filled up with the small ones of `demo.models`.

    Each may be a name from `demo.models`, a folder, or a Hugging Face id, whose files are fetched
    now: the gateway itself never downloads. Raises `ModelError`.
    """
    asked = list(dict.fromkeys(models))
    names = asked + [name for name in TEXT_MODELS if name not in asked]
    first, second = names[:2]
    make([name for name in (first, second) if name in TEXT_MODELS])
    return _find(first), _find(second)


def make(names: Sequence[str]) -> None:
    """Makes models of `demo.models` that are missing. Raises `ModelError`.

    In a process of its own: a conversion holds a model's worth of memory, and would blur what the
    demo measures afterwards.
    """
    command = [sys.executable, "-m", "demo.models", *names]
    if names and subprocess.run(command, check=False).returncode != 0:
        raise ModelError("the small models could not be made; the reason is above")


def _find(name: str) -> Choice:
    if name in TEXT_MODELS:
        return Choice(name, cache_dir() / name, kv_gb=0.25)
    folder = Path(name).expanduser()
    if folder.is_dir():
        choice = Choice(folder.name, folder.resolve(), kv_gb=1.0)
    else:
        choice = Choice(name, _fetch(name), kv_gb=1.0)
    if not choice.weights_bytes:
        raise ModelError(f"{choice.folder} holds no *.safetensors file: it is no MLX model")
    return choice


def _fetch(model_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_id, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # a boundary: the hub client's errors share no base class
        raise ModelError(
            f"{model_id} is no folder here and could not be fetched from the Hugging Face hub: "
            f"{error}"
        ) from error


def registry(first: Choice, second: Choice, others: Sequence[Choice] = ()) -> str:
    """A registry of all of them. Its budget holds either of the first two and never both."""
    charges = (first.charge_bytes, second.charge_bytes)
    budget = max(charges) + min(charges) // 2
    lines = [
        "manager:",
        f"  memory_budget_gb: {budget / _GIB:.2f}",
        "  min_resident_s: 0",
        "  contention_policy:",
        "    strategy: wait_then_fail",
        "models:",
    ]
    for choice in (first, second, *others):
        lines += [
            f"  - name: {json.dumps(choice.name)}",
            f"    path: {json.dumps(str(choice.folder))}",
        ]
        if choice.kv_gb is not None:
            lines.append(f"    kv_memory_gb: {choice.kv_gb}")
    return "\n".join(lines) + "\n"
