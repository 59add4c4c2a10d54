from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tokenizers import Tokenizer

from demo import gguf

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
TOKENS = ["<none>", "<begin>", "<end>", *"abc12", "ab", "Ġ"]


def metadata(**changes: Any) -> dict[str, Any]:
    numbers = {
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.block_count": 1,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 128,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
    }
    values: dict[str, Any] = {key: mx.array(value) for key, value in numbers.items()}
    values |= {
        "general.architecture": "llama",
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.rope.freq_base": mx.array(10000.0),
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": mx.array([3, 3, 3] + [1] * (len(TOKENS) - 3)),
        "tokenizer.chat_template": TEMPLATE,
    }
    return values | changes


def tensors() -> dict[str, Any]:
    return {
        "token_embd.weight": mx.arange(len(TOKENS) * 64).reshape(-1, 64).astype(mx.float16),
        "output_norm.weight": mx.ones(64),
        "blk.0.attn_q.weight": mx.eye(64),
    }


def convert(folder: Path, dtype: str, **changes: Any) -> Path:
    source, target = folder / "tiny.gguf", folder / dtype
    mx.save_gguf(str(source), tensors(), metadata(**changes))
    target.mkdir()
    gguf.convert(source, target, dtype, "convert tiny")
    return target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_are_renamed_and_cast(tmp_path: Path, dtype: str) -> None:
    weights: Any = mx.load(str(convert(tmp_path, dtype) / "model.safetensors"))
    assert sorted(weights) == [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.norm.weight",
    ]
    assert {weight.dtype for weight in weights.values()} == {getattr(mx, dtype)}
    assert weights["model.embed_tokens.weight"][1].tolist() == list(range(64, 128))


def test_the_config_is_that_of_a_llama(tmp_path: Path) -> None:
    config = json.loads((convert(tmp_path, "float32") / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert (config["hidden_size"], config["num_key_value_heads"]) == (64, 2)
    assert (config["max_position_embeddings"], config["eos_token_id"]) == (128, 2)
    assert config["rope_traditional"] is True
    assert config["tie_word_embeddings"] is True


def test_the_tokenizer_is_rebuilt(tmp_path: Path) -> None:
    folder = convert(tmp_path, "float32")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<begin>ab c12<end>").tokens == [
        *("<begin>", "ab", "Ġ", "c", "1", "2", "<end>"),
    ]
    assert tokenizer.decode(tokenizer.encode("ab c12").ids) == "ab c12"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE
    assert (config["eos_token"], config["unk_token"]) == ("<end>", "<none>")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "gemma3"}, "holds a gemma3 model"),
        ({"tokenizer.ggml.pre": "qwen2"}, "pre-tokenizer is qwen2"),
    ],
)
def test_another_family_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(tmp_path, "float32", **changes)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_tensors_are_expanded(bits: int) -> None:
    values = mx.random.normal((16, 64), key=mx.random.key(1))
    packed, scales, biases = mx.quantize(values, group_size=32, bits=bits)
    # GGUF's are float16.
    held = {"w.scales": scales.astype(mx.float16), "w.biases": biases.astype(mx.float16)}
    expanded = gguf.expand(packed, held, "w")
    assert expanded.dtype == mx.float32
    one_step = mx.abs(scales).max()
    assert mx.all(mx.abs(expanded - values) <= one_step).item()
