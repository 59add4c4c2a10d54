"""How much memory one model is given, in the parts that its engine keeps within. Pure."""

from __future__ import annotations

from engines import wire
from gateway.registry.find import Model
from gateway.registry.remembered import Measured
from gateway.registry.schema import Entry
from gateway.registry.units import GIB, MIB, gib

PROCESS_BYTES = 150 * MIB
"""What an engine process takes beside its model, at least."""

MOST_PROCESS_BYTES = GIB
"""What a measurement can raise that to: buffers that a load had not given back are no overhead."""

LEAST_OF_FILES = 0.95
"""A measurement lowers the weights to this share of the files at most.

The reservation has to hold during the load too, when tensors that the model drops may be there.
"""

LEAST_BATCH_BYTES, MOST_BATCH_BYTES = 256 * MIB, 2 * GIB
"""What models that take whole texts are given for what lives while one batch goes through them."""

LEAST_TOKENS = 4096
"""There is always KV for one request of this length, or of the whole context if that is less."""


def limits(model: Model, budget_bytes: int, remembered: Measured | None = None) -> wire.Limits:
    """The reservation of one model under a budget.

    Charge = weights + KV + prompt cache + MLX cache + process. What the operator did not set is
    derived, and then shrunk to what the budget leaves before a model counts as too large. Models
    that make vectors or scores have no KV: that part is for their batches, as much as the weights
    within bounds, and its engine takes no text that needs more.
    `remembered` is what an earlier load of these files measured: it is preferred to what the files
    say, in both directions (weights that are cast at load take more, dropped ones less). A
    scripted engine is charged exactly what it claims.
    """
    entry, size = model.entry, model.size
    if entry.engine == "scripted":
        claimed = size.weights_bytes if size else 0
        return wire.Limits(claimed, claimed, 0, 0, 0)
    weights, process = _weights(model, remembered), _process(remembered)
    mlx_cache = min(GIB, weights // 20)
    cap = round(budget_bytes * (entry.gpu_memory_utilization or 1))
    room = cap - weights - mlx_cache - process
    kv = prompt_cache = 0
    if entry.kind in ("text", "vision"):
        kv = _kv(model, budget_bytes, room)
        prompt_cache = _prompt_cache(entry, kv, room - kv)
    elif entry.kind in ("embedding", "rerank"):
        kv = _batch(entry, weights, min(room, budget_bytes * 15 // 100))
    charge = weights + kv + prompt_cache + mlx_cache + process
    return wire.Limits(charge, weights, kv, prompt_cache, mlx_cache)


def _weights(model: Model, remembered: Measured | None) -> int:
    """Measured before read from the files, and never below what the operator estimates."""
    weights = model.size.weights_bytes if model.size else 0
    if remembered is not None:
        weights = max(remembered.weights_bytes, round(weights * LEAST_OF_FILES))
    return max(weights, gib(model.entry.estimated_memory_gb or 0))


def _process(remembered: Measured | None) -> int:
    measured = remembered.overhead_bytes if remembered else 0
    return min(max(measured, PROCESS_BYTES), MOST_PROCESS_BYTES)


def _batch(entry: Entry, weights: int, room: int) -> int:
    if entry.kv_memory_gb is not None:
        return gib(entry.kv_memory_gb)
    return max(LEAST_BATCH_BYTES, min(weights, MOST_BATCH_BYTES, room))


def _kv(model: Model, budget_bytes: int, room: int) -> int:
    entry, size = model.entry, model.size
    context = entry.context_length or (size.context_length if size else None)
    least = size.kv_bytes(min(context or LEAST_TOKENS, LEAST_TOKENS)) if size else 0
    if entry.kv_memory_gb is not None:
        wanted = gib(entry.kv_memory_gb)
        return min(wanted, max(room, least)) if entry.gpu_memory_utilization else wanted
    wanted = budget_bytes * 15 // 100
    if size is not None and size.kv and context is not None:
        wanted = min(wanted, size.kv_bytes(context))
    # Two thirds, because the prompt cache is half as large again.
    fits = room - gib(entry.prompt_cache_gb) if entry.prompt_cache_gb else room * 2 // 3
    return max(least, min(wanted, fits), 0)


def _prompt_cache(entry: Entry, kv: int, room: int) -> int:
    if entry.prompt_cache_gb is None:
        return max(0, min(kv // 2, room))
    wanted = gib(entry.prompt_cache_gb)
    return min(wanted, max(room, 0)) if entry.gpu_memory_utilization else wanted
