"""A conversion before it is run: as a command a person could type, and as a record. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engines import wire

CONVERTED: tuple[wire.ToolKind, ...] = ("text", "vision")


def mistake(recipe: wire.Recipe) -> str | None:
    """Why this recipe makes no sense; None for a good one."""
    asked = (recipe.q_bits, recipe.q_group_size, recipe.quant_predicate)
    if not recipe.quantize and (any(asked) or recipe.q_mode != "affine"):
        return "--q-bits, --q-group-size, --q-mode and --quant-predicate need --quantize"
    if recipe.quant_predicate is not None and recipe.q_mode != "affine":
        return "--quant-predicate works with --q-mode affine only"
    return None


def command(source: str, output: Path, kind: wire.ToolKind, recipe: wire.Recipe) -> list[str]:
    """The library's own command for the same result."""
    module = "mlx_vlm" if kind == "vision" else "mlx_lm"
    words = ["python", "-m", module, "convert", "--hf-path", source, "--mlx-path", str(output)]
    if recipe.quantize:
        words += ["--quantize", "--q-mode", recipe.q_mode]
    values = {
        "--q-bits": recipe.q_bits,
        "--q-group-size": recipe.q_group_size,
        "--quant-predicate": recipe.quant_predicate,
        "--dtype": recipe.dtype,
    }
    for flag, value in values.items():
        if value is not None:
            words += [flag, str(value)]
    return words


def record(
    source: str,
    output: Path,
    kind: wire.ToolKind,
    recipe: wire.Recipe,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """What the manifest says beside versions and files."""
    return {
        "made_by": "convert",
        "kind": kind,
        "source": {"path": source, **origin},
        "recipe": msgspec.structs.asdict(recipe),
        "command": shlex.join(command(source, output, kind, recipe)),
    }
