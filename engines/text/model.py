"""Loading a text model from a local directory, and what the engine must know about it.

Weights are read lazily and made real in groups, so that progress can be reported and a cast needs
room for one group only. Everything runs in the work thread: an array that is not yet real belongs
to the thread that made it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer

from engines import wire
from engines.base import LoadError, Report

_GROUP_BYTES = 256 * 2**20
"""Weights made real between two progress reports."""

_FALLBACK_CONTEXT = 4096
"""Context of a model whose configuration states none."""

_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "n_positions", "n_ctx")


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of key-value cache of a row, as measured on one token."""

    per_row: int
    """What a row costs at any length: recurrent and convolution states."""
    per_token: tuple[tuple[int, int | None], ...]
    """Bytes per token, and the tokens after which a sliding window stops growing."""
    step: int
    """Caches grow in steps of so many tokens."""

    def batch(self, rows: int, longest: int) -> int:
        """Bytes of `rows` rows, every one padded to the longest, in tokens."""
        room = -(-longest // self.step) * self.step
        growing = sum(
            cost * (room if window is None else min(room, window))
            for cost, window in self.per_token
        )
        return rows * (self.per_row + growing)

    def context(self, kv_bytes: int, most: int) -> int:
        """Tokens of the longest single row that fits into `kv_bytes`, at most `most`."""
        if self.batch(1, most) <= kv_bytes:
            return most
        steps = range(most // self.step + 1)
        over = bisect_right(steps, kv_bytes, key=lambda count: self.batch(1, count * self.step))
        return max(0, over - 1) * self.step


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. `model` and `tokenizer` are mlx-lm's."""

    model: Any
    tokenizer: Any
    context_length: int
    weights_bytes: int
    vocabulary_size: int
    """Tokens that the model has logits for; its tokenizer may know fewer."""
    kv: KvCost
    batchable: bool
    cast_bytes: int
    """Bytes of weights that were float16 on disk and are float32 in memory."""


def load(spec: wire.EngineSpec, report: Report) -> LoadedModel:
    """Loads the model of `spec.path`, reporting each stage before it starts.

    Raises `LoadError` with a sentence for the operator.
    """
    path = checked_directory(spec.path)
    try:
        report(wire.Loading("reading configuration"))
        model, config = load_model(path, lazy=True, trust_remote_code=spec.trust_remote_code)
        cast = cast_half_precision(model)
        if cast:
            report(wire.Loading("casting float16 weights to float32, as this device is a CPU"))
        weights = materialise(model, report)
        report(wire.Loading("building tokenizer", weights, weights))
        tokenizer = build_tokenizer(path, config, spec.trust_remote_code)
        report(wire.Loading("first token", weights, weights))
        kv, vocabulary_size = _first_token(model)
    except Exception as error:  # a checkpoint can be wrong in any way
        raise LoadError(explain(path, error)) from error
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        context_length=context_length(config, spec.context_length),
        weights_bytes=weights,
        vocabulary_size=vocabulary_size,
        kv=kv,
        batchable=all(hasattr(layer, "merge") for layer in make_prompt_cache(model)),
        cast_bytes=cast,
    )


def build_tokenizer(path: Path, config: dict[str, Any], trust_remote_code: bool) -> Any:
    """The tokenizer of the model in `path`, with what `config` says about its last tokens."""
    return load_tokenizer(
        path,
        {"trust_remote_code": trust_remote_code},
        eos_token_ids=config.get("eos_token_id"),
    )


def checked_directory(name: str) -> Path:
    path = Path(name)
    if not path.is_dir():
        raise LoadError(f"{path} is not a directory; the engine loads local directories only")
    if not (path / "config.json").is_file():
        raise LoadError(f"{path} has no config.json, so it is not a model directory")
    if not any(path.glob("model*.safetensors")):
        raise LoadError(f"{path} has no model*.safetensors; download or convert the weights first")
    return path


def explain(path: Path, error: Exception) -> str:
    detail = " ".join(str(error).split())[:500]
    return f"the model in {path} cannot be loaded: {type(error).__name__}: {detail}"


def cast_half_precision(model: Any) -> int:
    """On a CPU, where float16 is emulated, turns it into float32; returns the bytes this gives."""
    if mx.default_device() != mx.cpu:
        return 0
    half = sum(a.size for _, a in tree_flatten(model.parameters()) if a.dtype == mx.float16)
    if half:
        model.set_dtype(mx.float32, lambda dtype: bool(dtype == mx.float16))
    return int(half) * 4


def materialise(model: Any, report: Report) -> int:
    """Makes all parameters real, group by group; returns their bytes."""
    arrays = [array for _, array in tree_flatten(model.parameters())]
    total = sum(int(array.nbytes) for array in arrays)
    done = 0
    report(wire.Loading("reading weights", done, total))
    for group in _groups(arrays):
        mx.eval(group)
        done += sum(int(array.nbytes) for array in group)
        report(wire.Loading("reading weights", done, total))
    return total


def _groups(arrays: list[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    size = 0
    for array in arrays:
        group.append(array)
        size += array.nbytes
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _first_token(model: Any) -> tuple[KvCost, int]:
    """Runs one token, which also shows that the model runs at all.

    Returns what its cache costs, and how many tokens it has logits for.
    """
    layers = make_prompt_cache(model)
    logits = model(mx.array([[0]]), cache=layers)
    mx.eval(logits)
    return kv_cost(layers), int(logits.shape[-1])


def kv_cost(layers: list[Any]) -> KvCost:
    per_row = 0
    step = 1
    per_token: Counter[int | None] = Counter()
    for layer in _flat(layers):
        allocated = _allocated_tokens(layer)
        if allocated:
            per_token[getattr(layer, "max_size", None)] += int(layer.nbytes) // allocated
            step = max(step, allocated)
        else:
            per_row += int(layer.nbytes)
    return KvCost(per_row, tuple((cost, window) for window, cost in per_token.items()), step)


def _flat(layers: Iterable[Any]) -> Iterator[Any]:
    for layer in layers:
        parts = getattr(layer, "caches", None)
        yield from (layer,) if parts is None else _flat(parts)


def _allocated_tokens(layer: Any) -> int:
    """Tokens that a layer's cache has room for, or 0 when its size does not depend on them."""
    keys = getattr(layer, "keys", None)
    return int(keys.shape[2]) if keys is not None and getattr(keys, "ndim", 0) == 4 else 0


def context_length(config: dict[str, Any], wanted: int | None) -> int:
    """The smaller of what the model states and what the operator asks for, in tokens."""
    text = config.get("text_config") or {}
    stated = [
        c[key] for c in (config, text) for key in _CONTEXT_KEYS if isinstance(c.get(key), int)
    ]
    known = min(stated) if stated else wanted or _FALLBACK_CONTEXT
    return min(known, wanted or known)
