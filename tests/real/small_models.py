"""Models of other make than a plain llama: hybrid and windowed, tiny, with drawn weights.

Their caches cannot be cut back. Nothing is downloaded; the tokenizer is a fixture's.
"""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.fixtures.make_models import TOKENIZER

WINDOW = 24

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 4096,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "hybrid": {
        **_SIZES,
        "model_type": "lfm2",
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 64,
        "layer_types": ["full_attention", "conv", "full_attention"],
    },
    "windowed": {
        **_SIZES,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
    },
}


def make_small(name: str, root: Path) -> Path:
    """Writes a model of `CONFIGS` into a folder under `root`, which it returns."""
    out = root / name
    out.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(TOKENIZER / file, out / file)
    known = json.loads((TOKENIZER / "config.json").read_text())
    shared = {key: known[key] for key in ("vocab_size", "eos_token_id")}
    config = {**shared, **CONFIGS[name]}
    (out / "config.json").write_text(json.dumps(config))
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(3)
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = {key: value * 8 for key, value in tree_flatten(model.parameters())}
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    return out
