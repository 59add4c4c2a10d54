"""Loading the layers of an encoder with mlx-vlm, from the files at the top of its folder alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_vlm.encoder_loader import load_encoder_model

from engines import wire
from engines.base import LoadError, Report
from engines.text.model import cast_half_precision, materialise
from engines.vectors.batches import Row
from engines.vectors.sentence import Dense

_ACTIVATIONS: Mapping[str, Any] = {
    "Identity": lambda x: x,
    "Tanh": mx.tanh,
    "ReLU": nn.relu,
    "GELU": nn.gelu,
    "SiLU": nn.silu,
    "Sigmoid": mx.sigmoid,
}


def load_layers(folder: Path, config: dict[str, Any], report: Report, **options: Any) -> Any:
    """mlx-vlm's model of this (patched) `config`, its weights made real. Raises what that raises.

    Options: `model_class_name`, `config_overrides`; `whole` gives mlx-vlm the subfolders too,
    for a family whose model takes its layers behind the pooling from there.
    """
    whole = options.pop("whole", False)
    with _top_of(folder) as top:
        model = load_encoder_model(
            folder if whole else top, model_remapping={}, config=config, lazy=True, **options
        )
        if cast_half_precision(model):
            report(wire.Loading("casting float16 weights to float32, as this device is a CPU"))
        materialise(model, report)
    for module in model.modules():
        if isinstance(getattr(module, "act", None), nn.GELU):
            module.act = (
                nn.GELU()
            )  # mlx-vlm approximates it for ModernBERT, which is trained with it
    return model


@contextmanager
def _top_of(folder: Path) -> Iterator[Path]:
    """The folder without its subfolders, whose layers are no part of the encoder."""
    with tempfile.TemporaryDirectory(prefix="encoder-") as name:
        for file in folder.iterdir():
            if file.is_file():
                (Path(name) / file.name).symlink_to(file.resolve())
        yield Path(name)


class DenseLayer:
    """One layer behind the pooling. Raises `LoadError`."""

    def __init__(self, dense: Dense) -> None:
        if dense.activation not in _ACTIVATIONS:
            raise LoadError(
                f"{dense.folder.name}/config.json asks for the activation {dense.activation!r};"
                f" known are {', '.join(_ACTIVATIONS)}"
            )
        file = dense.folder / "model.safetensors"
        if not file.is_file():
            raise LoadError(f"{file} is missing; a pickled layer (*.bin) is not read")
        weights: Any = mx.load(str(file))
        self._weight = weights["linear.weight"].astype(mx.float32)
        self._bias = weights["linear.bias"].astype(mx.float32) if dense.bias else None
        if self._weight.shape != (dense.outputs, dense.inputs):
            raise LoadError(f"{file} does not hold what its config.json says")
        self._activation = _ACTIVATIONS[dense.activation]
        mx.eval(self._weight, self._bias)

    @property
    def nbytes(self) -> int:
        return int(self._weight.nbytes) + (0 if self._bias is None else int(self._bias.nbytes))

    def __call__(self, vectors: Any) -> Any:
        """[rows, inputs] to [rows, outputs]."""
        made = vectors @ self._weight.T
        return self._activation(made if self._bias is None else made + self._bias)


def padded_arrays(rows: Sequence[Row], pad: int) -> tuple[Any, Any, Any]:
    """Token ids, mask and token types (or None) of rows padded on the right: [rows, longest].

    On the right, because a causal model then needs no mask for padding, and positions count from
    the beginning of every text.
    """
    longest = max(len(row.tokens) for row in rows)
    ids = np.full((len(rows), longest), pad, np.int32)
    mask = np.zeros((len(rows), longest), np.int32)
    types = np.zeros((len(rows), longest), np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row.tokens)] = row.tokens
        mask[i, : len(row.tokens)] = 1
        if row.types is not None:
            types[i, : len(row.types)] = row.types
    typed = any(row.types is not None for row in rows)
    return mx.array(ids), mx.array(mask), mx.array(types) if typed else None
