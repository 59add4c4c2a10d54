"""A checkpoint's own `config.json`, as this version of mlx-vlm reads it. Pure.

Checkpoints saved by transformers 5 nest what mlx-vlm looks for at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.base import LoadError
from engines.vectors.batches import Cost

Config = Mapping[str, Any]

_ACTIVATIONS = {
    "bert": "hidden_act",
    "xlm_roberta": "hidden_act",
    "modernbert": "hidden_activation",
}
_POSITIONS_BEFORE_TEXT = frozenset({"xlm_roberta"})
"""Families that count positions from behind the padding token's id."""

_FLOAT32 = 4


def patched(config: Config, family: str) -> dict[str, Any]:
    """A copy in the older form, for mlx-vlm's `family`.

    Raises `LoadError` for what mlx-vlm's encoders would silently take for something else.
    """
    key = _ACTIVATIONS.get(family)
    if key is not None and (given := config.get(key, "gelu")) != "gelu":
        raise LoadError(f"{key} is {given!r}; MLX has this kind of model with 'gelu' alone")
    positions = config.get("position_embedding_type", "absolute")
    if family in ("bert", "xlm_roberta") and positions != "absolute":
        raise LoadError(
            f"position_embedding_type is {positions!r}; MLX has this kind of model with 'absolute'"
        )
    return {**_rope(config, family), **config, "model_type": family}


def _rope(config: Config, family: str) -> dict[str, Any]:
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return {}
    full, sliding = rope.get("full_attention", rope), rope.get("sliding_attention", rope)
    theta, local = full.get("rope_theta"), sliding.get("rope_theta")
    if family == "modernbert":
        found = {"global_rope_theta": theta, "local_rope_theta": local}
    else:
        found = {"rope_theta": theta, "rope_local_base_freq": local}
        if full.get("rope_type", "default") != "default":
            found["rope_scaling"] = dict(full)
    return {key: value for key, value in found.items() if value is not None}


def positions_of(config: Config, family: str) -> int:
    """The most tokens that the model has positions for. Raises `LoadError` if it does not say."""
    most = config.get("max_position_embeddings")
    if not isinstance(most, int) or most < 1:
        raise LoadError("config.json has no max_position_embeddings")
    if family in _POSITIONS_BEFORE_TEXT:
        pad = config.get("pad_token_id", 1)
        most -= 1 + (pad if isinstance(pad, int) else 1)
    return most


def cost_of(config: Config, *, fused: bool) -> Cost:
    """Bytes that one forward pass holds at its height, in float32, rounded up.

    Per token: the hidden state some ten times over, and twice the inner layer. Per pair of tokens:
    scores and weights of every head, or with fused attention the mask and its copy alone.
    """
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    inner = _size(config, "intermediate_size")
    per_token = (10 * hidden + 2 * inner) * _FLOAT32
    return Cost(per_token, 2 * _FLOAT32 * (1 if fused else heads))


def _size(config: Config, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise LoadError(f"config.json has no {key}")
    return value
