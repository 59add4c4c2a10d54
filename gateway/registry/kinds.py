"""What a model's own config says: what it does, its context, what one token of context costs.

Pure: `config.json` goes in as a mapping. Configs are other people's files, so nothing is trusted
to be there or to have the right type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.registry.schema import Kind

Config = Mapping[str, Any]

_KINDS: dict[Kind, frozenset[str]] = {
    "transcription": frozenset(
        ("whisper", "parakeet", "moonshine", "qwen3_asr", "voxtral", "wav2vec2", "canary",
         "glm_asr", "vibevoice_asr", "speech_to_text")
    ),
    "speech": frozenset(
        ("kokoro", "csm", "sesame", "bark", "dia", "outetts", "spark", "qwen3_tts", "chatterbox",
         "vits", "speecht5", "f5_tts", "indextts", "soprano", "pocket_tts", "kitten_tts")
    ),
    "embedding": frozenset(
        ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "nomic_bert",
         "deberta-v2", "electra", "albert", "siglip", "clip", "colqwen2_5", "gemma3_text_embed",
         "new", "camembert", "llama_bidirec")
    ),
}  # fmt: skip
_CALLED: tuple[tuple[Kind, re.Pattern[str], frozenset[str]], ...] = (
    ("rerank", re.compile(r"(?:^|[-_.])rerank", re.IGNORECASE), frozenset(("qwen3",))),
    (
        "embedding",
        re.compile(r"(?:^|[-_.])embed", re.IGNORECASE),
        frozenset(("qwen3", "gemma3_text", "ministral3", "lfm2")),
    ),
)
"""Families of which models that write, that rank and that make vectors have the same config."""

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length",
    "n_ctx", "n_text_ctx",
)  # fmt: skip
_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_STATE_BYTES = 4  # recurrent states are float32 whatever the weights are


class KvLayers(msgspec.Struct, frozen=True):
    """`count` equal layers; `window` is where a sliding-window layer stops growing, in tokens."""

    count: int
    bytes_per_token: int
    window: int | None = None


def kind_of(
    config: Config,
    *,
    sentence_transformer: bool = False,
    cross_encoder: bool = False,
    name: str = "",
) -> Kind:
    """What the model does. `sentence_transformer`: its folder holds that library's `modules.json`,
    and with `cross_encoder` that says that it scores pairs. `name` is what its makers call it.

    Architectures decide over model types, because one type serves several purposes (a BERT with a
    head for sequence classification scores pairs, without it makes vectors).
    """
    family = str(config.get("model_type", ""))
    if (audio := _audio_kind(config, family)) is not None:
        return audio
    architectures = _names(config.get("architectures"))
    heads = ("ForSequenceClassification", "ForRanking")
    if cross_encoder or any(architecture.endswith(heads) for architecture in architectures):
        return "rerank"
    for kind, called, families in _CALLED:
        if family in families and called.search(name):
            return kind
    if sentence_transformer or family in _KINDS["embedding"] or _bare_model(architectures):
        return "embedding"
    return "vision" if isinstance(config.get("vision_config"), Mapping) else "text"


def _audio_kind(config: Config, family: str) -> Kind | None:
    if family in _KINDS["transcription"]:
        return "transcription"
    if str(config.get("target", "")).startswith("nemo.collections.asr"):
        return "transcription"
    if family in _KINDS["speech"] or ("istftnet" in config and "plbert" in config):
        return "speech"
    return None


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _bare_model(architectures: list[str]) -> bool:
    """`Gemma3TextModel` and the like: layers without a head give vectors."""
    return bool(architectures) and all(
        name.endswith("Model") and not name.endswith("LMHeadModel") for name in architectures
    )


def context_length_of(config: Config) -> int | None:
    """Longest context in tokens that the model was made for."""
    return _number(_text_part(config), *_CONTEXT_KEYS) or _number(config, *_CONTEXT_KEYS)


def dtype_bytes_of(config: Config) -> int | None:
    """Bytes of one activation as the config names its type, for when the weights do not tell."""
    for part in (_text_part(config), config):
        for key in ("dtype", "torch_dtype"):
            if (size := _DTYPE_BYTES.get(str(part.get(key)).removeprefix("torch."))) is not None:
                return size
    return None


def kv_layers_of(config: Config, dtype_bytes: int) -> tuple[KvLayers, ...]:
    """KV bytes of one sequence, by groups of equal layers; empty when the config does not say.

    A layer keeps 2 x KV heads x head size values a token (keys and values), with latent attention
    its rank and rotary part instead. Linear-attention, state-space and convolution layers keep a
    constant state, see `state_bytes_of`.
    """
    text = _text_part(config)
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if layers is None:
        return ()
    full, sliding = _layer_values(text, "full"), _layer_values(text, "sliding")
    if full is None or sliding is None:
        return ()
    window = _number(text, "sliding_window")
    kinds = _layer_kinds(text, layers)
    groups = []
    if count := kinds.count("full"):
        groups.append(KvLayers(count, full * dtype_bytes))
    if count := kinds.count("sliding"):
        groups.append(KvLayers(count, sliding * dtype_bytes, window))
    return tuple(groups)


def state_bytes_of(config: Config, dtype_bytes: int) -> int:
    """Constant bytes of one sequence in gated linear-attention layers; 0 for models without."""
    text = _text_part(config)
    layers = _number(text, "num_hidden_layers") or 0
    linear = _layer_kinds(text, layers).count("linear")
    value_heads, key_heads, key, value = (
        _number(text, f"linear_{name}") or 0
        for name in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")
    )
    kernel = _number(text, "linear_conv_kernel_dim") or 1
    recurrent = value_heads * key * value * _STATE_BYTES
    convolution = (kernel - 1) * (2 * key_heads * key + value_heads * value) * dtype_bytes
    return linear * (recurrent + convolution)


def _layer_values(text: Config, which: str) -> int | None:
    """Values that one layer keeps for one token."""
    heads = _number(text, "num_attention_heads", "n_head", "n_heads")
    if rank := _number(text, "kv_lora_rank"):
        rotary = _number(text, "qk_rope_head_dim") or 0
        if text.get("model_type") != "deepseek_v2":
            return rank + rotary
        # Its cache holds the keys and values of every head, not the latents.
        plain = _number(text, "qk_nope_head_dim") or 0
        return (heads or 0) * (plain + rotary + (_number(text, "v_head_dim") or 0))
    kv_heads = _number(text, "num_key_value_heads", "n_kv_heads") or heads
    head = _number(text, "head_dim")
    if head is None and heads and (hidden := _number(text, "hidden_size", "n_embd", "d_model")):
        head = hidden // heads
    if which == "full":
        head = _number(text, "global_head_dim") or head
        kv_heads = _number(text, "num_global_key_value_heads") or kv_heads
    return 2 * kv_heads * head if kv_heads and head else None


def _layer_kinds(text: Config, layers: int) -> list[str]:
    """`full`, `sliding` or `linear` for each layer; where in doubt `full`, the upper bound."""
    windowed = _number(text, "sliding_window") is not None and text.get("use_sliding_window", True)
    named = _names(text.get("layer_types"))
    if named:
        return [_named_layer(name, bool(windowed)) for name in named[:layers]]
    every = _number(text, "full_attention_interval")
    other = "linear"
    if every is None and windowed:
        every, other = _number(text, "sliding_window_pattern"), "sliding"
    if every is None:
        return ["full"] * min(layers, 10_000)
    return ["full" if (i + 1) % every == 0 else other for i in range(min(layers, 10_000))]


def _named_layer(name: str, windowed: bool) -> str:
    if name in ("sliding_attention", "chunked_attention"):
        return "sliding" if windowed else "full"
    return "full" if name in ("full_attention", "attention", "global_attention") else "linear"


def _text_part(config: Config) -> Config:
    for key in _TEXT_PARTS:
        if isinstance(part := config.get(key), Mapping):
            return part
    return config


def _number(config: Config, *keys: str) -> int | None:
    """The first of `keys` that holds a positive whole number of a plausible size."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None
