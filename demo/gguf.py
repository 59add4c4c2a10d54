"""From a GGUF file of a llama-type model to a folder that mlx-lm loads.

MLX reads GGUF's Q4_0, Q4_1 and Q8_0 tensors as its own quantised arrays: groups of 32 values, with
a scale and a bias each. They are expanded here, because plain floats are what a CPU computes fast.
The tokenizer is rebuilt from the vocabulary, merges and token types in the file's metadata.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from demo.progress import Progress

VERSION = 1
"""Grows with every change of what `convert` writes, so that folders made before are made anew."""

_GROUP_SIZE = 32
_CONTROL_TOKEN = 3
"""`tokenizer.ggml.token_type` of a token that is never found in plain text."""

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def convert(source: Path, target: Path, dtype: str, label: str) -> None:
    """Writes the model of `source` into the existing folder `target`.

    `dtype` is the name of an MLX float type. Raises `ValueError` for a file of another family.
    """
    import mlx.core as mx

    loaded: Any = mx.load(str(source), return_metadata=True)
    tensors, metadata = loaded
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise ValueError(f"{source.name} holds a {architecture} model; only llama can be converted")
    weights = _weights(tensors, getattr(mx, dtype), label)
    mx.save_safetensors(str(target / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_json(
        target / "config.json", _config(metadata, dtype, tied="lm_head.weight" not in weights)
    )
    _write_json(target / "tokenizer_config.json", _tokenizer_config(metadata))
    _save_tokenizer(metadata, target / "tokenizer.json")


def tensor_name(name: str) -> str:
    """The mlx-lm name of a GGUF tensor, suffix kept; raises `ValueError` for an unknown one."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name):
        layer, module, suffix = match.groups()
        if module in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[module]}.{suffix}"
    module, _, suffix = name.rpartition(".")
    if module in _OUTER_NAMES:
        return f"{_OUTER_NAMES[module]}.{suffix}"
    raise ValueError(f"the GGUF tensor {name} has no counterpart in a llama model")


def _weights(tensors: dict[str, Any], dtype: Any, label: str) -> dict[str, Any]:
    """Every tensor by its mlx-lm name, as `dtype`; quantised ones are expanded in float32."""
    import mlx.core as mx

    weights: dict[str, Any] = {}
    names = [name for name in tensors if name.rpartition(".")[2] not in ("scales", "biases")]
    with Progress(label, len(names)) as progress:
        for count, name in enumerate(names, start=1):
            value = tensors[name]
            if value.dtype == mx.uint32:
                value = expand(value, tensors, name.removesuffix(".weight"))
            value = value.astype(dtype)
            mx.eval(value)
            weights[tensor_name(name)] = value
            progress.update(count)
    return weights


def expand(packed: Any, tensors: dict[str, Any], module: str) -> Any:
    """The float32 matrix of a quantised one; its width tells how many bits a value has."""
    import mlx.core as mx

    scales = tensors[f"{module}.scales"].astype(mx.float32)
    biases = tensors[f"{module}.biases"].astype(mx.float32)
    values_per_row = scales.shape[-1] * _GROUP_SIZE
    bits = packed.shape[-1] * 32 // values_per_row
    return mx.dequantize(packed, scales, biases, group_size=_GROUP_SIZE, bits=bits)


def _config(metadata: dict[str, Any], dtype: str, *, tied: bool) -> dict[str, Any]:
    def number(key: str) -> Any:
        return metadata[key].item()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_size": number("llama.embedding_length"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_hidden_layers": number("llama.block_count"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "max_position_embeddings": number("llama.context_length"),
        "vocab_size": number("llama.vocab_size"),
        "rms_norm_eps": number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": number("llama.rope.freq_base"),
        # GGUF stores the query and key rows of a llama model permuted for interleaved rotation.
        "rope_traditional": True,
        "tie_word_embeddings": tied,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": number("tokenizer.ggml.padding_token_id"),
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]

    def token(role: str) -> Any:
        return tokens[metadata[f"tokenizer.ggml.{role}_token_id"].item()]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "chat_template": metadata["tokenizer.chat_template"],
        "model_max_length": metadata["llama.context_length"].item(),
        "clean_up_tokenization_spaces": False,
    }


def _save_tokenizer(metadata: dict[str, Any], path: Path) -> None:
    """Byte-level BPE whose numbers are split into digits (`tokenizer.ggml.pre` = smollm)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    scheme = metadata["tokenizer.ggml.pre"]
    if scheme != "smollm":
        raise ValueError(f"the file's pre-tokenizer is {scheme}; only smollm can be converted")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"].tolist()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(path))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
