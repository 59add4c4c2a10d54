"""Writes a model anew in another form: quantised, or with weights of another type.

The libraries that serve a kind also convert it. Their converters know no resuming, so what is left
of an earlier try is thrown away.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from engines import wire
from engines.tools import manifest, staging
from engines.tools.errors import ToolError
from engines.tools.manifest import Report

_PACKAGES = ("mlx-gateway", "mlx", "mlx-lm", "mlx-vlm", "transformers")


def convert(task: wire.Convert, report: Report) -> dict[str, Any]:
    """Nothing to tell: the manifest is in the target. Raises `ToolError`, and as the library."""
    source, target, folder = Path(task.source), Path(task.target), Path(task.staging)
    staging.check_target(target)
    with staging.staging(folder, target):
        made = folder / "model"
        shutil.rmtree(made, ignore_errors=True)
        staging.check_room(folder, _bytes(source, task.recipe))
        report(f"converting {source.name}", 0, 0)
        _convert(task, made)
        fields = {
            **task.record,
            "source": _source(task, report),
            "versions": manifest.versions(_PACKAGES),
            "files": manifest.files_in(made, report),
        }
        manifest.write(made, fields)
        staging.put(made, folder, target)
    return {}


def _source(task: wire.Convert, report: Report) -> dict[str, Any]:
    """A source that no commit names is named by the checksums of its files."""
    source: dict[str, Any] = task.record.get("source", {"path": task.source})
    if "commit" in source:
        return source
    return {**source, "files": manifest.files_in(Path(task.source), report, "source")}


def _bytes(source: Path, recipe: wire.Recipe) -> int:
    """What the result takes at most: weights grow only when they are widened."""
    have = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    return have * 2 if recipe.dtype == "float32" else have


def _convert(task: wire.Convert, made: Path) -> None:
    recipe = task.recipe
    asked: dict[str, Any] = {
        "quantize": recipe.quantize,
        "q_mode": recipe.q_mode,
        "dtype": recipe.dtype,
        "quant_predicate": recipe.quant_predicate,
        "trust_remote_code": False,
    }
    chosen = {"q_bits": recipe.q_bits, "q_group_size": recipe.q_group_size}
    asked |= {name: value for name, value in chosen.items() if value is not None}
    try:
        if task.kind == "vision":
            from mlx_vlm.convert import convert as convert_vision

            convert_vision(task.source, str(made), **asked)
        else:
            from mlx_lm.convert import convert as convert_text

            convert_text(task.source, str(made), **asked)
    except (ValueError, NotImplementedError, KeyError, FileNotFoundError) as error:
        raise ToolError(f"{task.source} cannot be converted: {error}") from error
