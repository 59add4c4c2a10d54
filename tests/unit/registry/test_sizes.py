"""Sizes from headers, kinds and KV from configs, and what a model is charged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from gateway.registry.find import Model, find, hub_cache
from gateway.registry.kinds import (
    KvLayers,
    context_length_of,
    kind_of,
    kv_layers_of,
    state_bytes_of,
)
from gateway.registry.limits import PROCESS_BYTES, limits
from gateway.registry.schema import Entry, Kind, Scripted
from gateway.registry.sizes import Size, SizeError, measure
from gateway.registry.units import GIB, MIB

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def write_tensors(file: Path, tensors: dict[str, tuple[str, int]]) -> None:
    """A safetensors file with tensors of so many bytes, all zero."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(end))


def write_model(folder: Path, config: dict[str, Any] | None = None, size: int = 4096) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or LLAMA))
    write_tensors(folder / "model.safetensors", {"a": ("F32", size), "b": ("U32", 64)})
    return folder


def test_measure_sums_the_tensors(tmp_path: Path) -> None:
    size = measure(write_model(tmp_path))
    assert size.weights_bytes == 4096 + 64
    assert (size.kind, size.context_length) == ("text", 2048)
    # keys and values x 2 heads x 16 x the 4 bytes of the weights' own type, in 2 layers
    assert size.kv == (KvLayers(2, 2 * 2 * 16 * 4),)
    assert size.kv_bytes_per_token == 512
    assert size.kv_bytes(1) == size.kv_bytes(256) == 256 * 512


def test_measure_reads_every_shard_of_an_index(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").unlink()
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for shard in shards:
        write_tensors(folder / shard, {shard: ("BF16", 1000)})
    index = {"weight_map": {"x": shards[0], "y": shards[1], "z": shards[0]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert measure(folder).weights_bytes == 2000
    (folder / shards[1]).unlink()
    with pytest.raises(SizeError, match=r"00002-of-00002\.safetensors of 2 weight files missing"):
        measure(folder)


def test_fingerprint_follows_config_and_weights(tmp_path: Path) -> None:
    first = measure(write_model(tmp_path)).fingerprint
    assert measure(tmp_path).fingerprint == first
    write_tensors(tmp_path / "model.safetensors", {"a": ("F32", 8192)})
    second = measure(tmp_path).fingerprint
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"rope_theta": 1}))
    assert len({first, second, measure(tmp_path).fingerprint}) == 3


def _spoil_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _bad_json(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"{]}!")


def _deep(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' * 100_000)


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _dangling(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "gone")


def _outside(folder: Path) -> None:
    index = {"weight_map": {"a": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[]")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _config_list(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")


def _negative(folder: Path) -> None:
    raw = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}'
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_spoil_header, "truncated or no safetensors"),
        (_truncate, "is truncated: "),
        (_bad_json, "header of model.safetensors cannot be understood"),
        (_no_weights, "no weights"),
        (_deep, "cannot be understood"),
        (_dangling, "download is incomplete"),
        (_outside, "outside the folder"),
        (_broken_index, "cannot be understood"),
        (_no_config, r"no config\.json"),
        (_config_list, "config.json cannot be understood"),
        (_negative, "header of model.safetensors cannot be understood"),
    ],
)
def test_an_incomplete_model_says_what_is_missing(tmp_path: Path, spoil: Any, reason: str) -> None:
    spoil(write_model(tmp_path))
    with pytest.raises(SizeError, match=reason):
        measure(tmp_path)


def test_measure_of_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SizeError, match="not a folder"):
        measure(tmp_path / "file")
    with pytest.raises(SizeError, match="no such folder"):
        measure(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (LLAMA, "text"),
        ({}, "text"),
        ({"architectures": ["GPT2LMHeadModel"]}, "text"),
        ({"model_type": "qwen2_vl", "vision_config": {}}, "vision"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "embedding"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "embedding"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, "rerank"),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]}, "embedding"),
        (
            {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
            "transcription",
        ),
        ({"target": "nemo.collections.asr.models.EncDecRNNTBPEModel"}, "transcription"),
        ({"model_type": "kokoro"}, "speech"),
        ({"istftnet": {}, "plbert": {}}, "speech"),
        ({"model_type": ["odd"], "architectures": "odd", "vision_config": 3}, "text"),
    ],
)
def test_kind(config: dict[str, Any], kind: str) -> None:
    assert kind_of(config) == kind


def test_a_sentence_transformer_makes_vectors(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "modules.json").write_text("[]")
    size = measure(tmp_path)
    assert (size.kind, size.kv) == ("embedding", ())


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (KvLayers(2, 128),)),
        ({"num_key_value_heads": None}, (KvLayers(2, 256),)),
        ({"head_dim": 32}, (KvLayers(2, 256),)),
        ({"sliding_window": 512}, (KvLayers(2, 128),)),
        (
            {"sliding_window": 512, "sliding_window_pattern": 2},
            (KvLayers(1, 128), KvLayers(1, 128, 512)),
        ),
        (
            {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]},
            (KvLayers(1, 128), KvLayers(1, 128, 512)),
        ),
        (
            {
                "sliding_window": 512,
                "use_sliding_window": False,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (KvLayers(2, 128),),
        ),
        ({"layer_types": ["linear_attention", "full_attention"]}, (KvLayers(1, 128),)),
        ({"full_attention_interval": 2}, (KvLayers(1, 128),)),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, (KvLayers(2, 1152),)),
        (
            {
                "model_type": "deepseek_v2",
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "v_head_dim": 128,
            },
            (KvLayers(2, 4 * (128 + 64 + 128) * 2),),
        ),
        ({"hidden_size": None}, ()),
        ({"num_hidden_layers": "2"}, ()),
        ({"num_hidden_layers": True}, ()),
    ],
)
def test_kv_layers(changes: dict[str, Any], layers: tuple[KvLayers, ...]) -> None:
    assert kv_layers_of(LLAMA | changes, 2) == layers
    assert kv_layers_of({"text_config": LLAMA | changes}, 2) == layers


def test_kv_of_a_known_model() -> None:
    """30 layers x keys and values x 3 heads x 64 x 4 bytes: 46,080 bytes a token."""
    smol = {
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
    }
    size = Size(weights_bytes=0, kind="text", kv=kv_layers_of(smol, 4))
    assert size.kv_bytes_per_token == 46_080


def test_a_full_window_stops_growing() -> None:
    size = Size(
        weights_bytes=0, kind="text", kv=(KvLayers(1, 10), KvLayers(2, 10, 512)), state_bytes=7
    )
    assert size.kv_bytes(512) == 512 * 30 + 7
    assert size.kv_bytes(1024) == 1024 * 10 + 512 * 20 + 7


def test_recurrent_state() -> None:
    config = {
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
    }
    assert state_bytes_of(config, 2) == 3 * (2 * 8 * 8 * 4 + 3 * (2 * 8 + 2 * 8) * 2)
    assert state_bytes_of(LLAMA, 2) == 0


def test_context_length() -> None:
    assert context_length_of(LLAMA) == 2048
    assert context_length_of({"text_config": {"n_positions": 7}}) == 7
    assert context_length_of({"text_config": {}, "max_position_embeddings": 9}) == 9
    assert context_length_of({"max_position_embeddings": "2048"}) is None


def test_find_resolves_folders_and_the_local_cache(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m")
    environ = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}

    def found(**origin: Any) -> Model:
        return find(Entry(name="a", **origin), base=tmp_path / "models", environ=environ)

    for model in (found(path="m"), found(path="./m"), found(source="~/models/m"), found(model="m")):
        assert model.unavailable is None
        assert model.path is not None
        assert model.path.resolve() == (tmp_path / "models" / "m").resolve()
        assert model.entry.kind == "text"
    assert "not in the local Hugging Face cache" in (found(model="org/m").unavailable or "")
    cached = hub_cache(environ) / "models--org--m"
    write_model(cached / "snapshots" / "abc123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc123\n")
    assert found(model="org/m").path == cached / "snapshots" / "abc123"
    assert found(source="org/m").size is not None
    assert "too long" in (found(source="x" * 300).unavailable or "")
    (cached / "refs" / "main").write_text("../../../secret")
    assert found(model="org/m").path is None


def test_hub_cache_follows_its_variables() -> None:
    both = {"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}
    assert hub_cache(both) == Path("/c")
    assert hub_cache({"HF_HOME": "/h"}) == Path("/h/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert hub_cache({"HOME": "/u"}) == Path("/u/.cache/huggingface/hub")


def _model(weights: int, kv_per_token: int = 0, context: int | None = None, **keys: Any) -> Model:
    kv = (KvLayers(1, kv_per_token),) if kv_per_token else ()
    size = Size(weights_bytes=weights, kind="text", kv=kv, context_length=context)
    return Model(entry=Entry(name="a", path="/x", kind=keys.pop("kind", "text"), **keys), size=size)


def test_limits_reserve_one_context() -> None:
    given = limits(_model(10 * GIB, 100 * 1024, 8192), 100 * GIB)
    assert given.weights_bytes == 10 * GIB
    assert given.kv_bytes == 8192 * 100 * 1024
    assert given.prompt_cache_bytes == given.kv_bytes // 2
    assert given.mlx_cache_bytes == GIB // 2
    parts = (given.weights_bytes, given.kv_bytes, given.prompt_cache_bytes, given.mlx_cache_bytes)
    assert given.charge_bytes == sum(parts) + PROCESS_BYTES


def test_limits_of_a_long_context_are_a_share_of_the_budget() -> None:
    assert limits(_model(10 * GIB, MIB, 2**20), 100 * GIB).kv_bytes == 15 * GIB
    assert limits(_model(10 * GIB), 100 * GIB).kv_bytes == 15 * GIB


def test_limits_shrink_what_is_derived_before_a_model_is_too_large() -> None:
    model = _model(18 * GIB, MIB // 8, 2**20)
    assert limits(model, 100 * GIB).kv_bytes == 15 * GIB
    tight = limits(model, 21 * GIB)
    assert tight.charge_bytes <= 21 * GIB
    assert GIB < tight.kv_bytes < 2 * GIB
    least = limits(model, 19 * GIB)
    assert least.kv_bytes == 4096 * MIB // 8
    assert least.charge_bytes > 19 * GIB


def test_limits_keep_what_the_operator_set() -> None:
    asked = {"kv_memory_gb": 3.0, "prompt_cache_gb": 0.0, "estimated_memory_gb": 12.0}
    given = limits(_model(10 * GIB, MIB, 2**20, **asked), 16 * GIB)
    assert (given.weights_bytes, given.kv_bytes, given.prompt_cache_bytes) == (12 * GIB, 3 * GIB, 0)
    lower = limits(_model(10 * GIB, estimated_memory_gb=1.0), 16 * GIB)
    assert lower.weights_bytes == 10 * GIB


def test_limits_stay_below_the_utilization() -> None:
    capped = limits(_model(10 * GIB, MIB, 2**20, gpu_memory_utilization=0.5), 40 * GIB)
    assert capped.charge_bytes <= 20 * GIB
    asked = {"kv_memory_gb": 30.0, "prompt_cache_gb": 30.0}
    given = limits(_model(10 * GIB, MIB, 2**20, gpu_memory_utilization=0.5, **asked), 40 * GIB)
    assert given.charge_bytes <= 20 * GIB


@pytest.mark.parametrize(
    ("weights", "budget", "batch"),
    [
        (GIB, 40 * GIB, GIB),
        (64 * MIB, 40 * GIB, 256 * MIB),
        (16 * GIB, 40 * GIB, 2 * GIB),
        (16 * GIB, 17 * GIB, 256 * MIB),  # too large anyway, and refused as that
        (4 * GIB, 10 * GIB, 10 * GIB * 15 // 100),
    ],
)
@pytest.mark.parametrize("kind", ["embedding", "rerank"])
def test_what_takes_whole_texts_is_charged_for_its_batches(
    weights: int, budget: int, batch: int, kind: Kind
) -> None:
    given = limits(_model(weights, kind=kind), budget)
    assert (given.kv_bytes, given.prompt_cache_bytes) == (batch, 0)
    assert given.charge_bytes == weights + batch + given.mlx_cache_bytes + PROCESS_BYTES


def test_the_operator_says_what_a_batch_may_take() -> None:
    assert limits(_model(GIB, kind="rerank", kv_memory_gb=3), 40 * GIB).kv_bytes == 3 * GIB


def test_audio_has_neither_kv_nor_batches() -> None:
    given = limits(_model(GIB, kind="speech"), 40 * GIB)
    assert (given.kv_bytes, given.prompt_cache_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("family", "name", "kind"),
    [
        ("qwen3", "Qwen3-Reranker-0.6B", "rerank"),
        ("qwen3", "qwen3-embedding-4b-8bit", "embedding"),
        ("qwen3", "Qwen3-0.6B", "text"),
        ("llama", "my-reranker", "text"),
        ("gemma3_text", "embeddinggemma-300m", "embedding"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_a_name_tells_where_the_config_cannot(
    tmp_path: Path, family: str, name: str, kind: str, cached: bool
) -> None:
    above = f"models--maker--{name}/snapshots/0123abc" if cached else name
    config = LLAMA | {"model_type": family, "architectures": ["SomeForCausalLM"]}
    assert measure(write_model(tmp_path / above, config)).kind == kind


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("sentence_transformers.models.Transformer", "embedding"),
        ("sentence_transformers.cross_encoder.models.Transformer", "rerank"),
    ],
)
def test_modules_tell_vectors_from_pairs(tmp_path: Path, module: str, kind: str) -> None:
    folder = write_model(tmp_path)
    (folder / "modules.json").write_text(json.dumps([{"type": module}]))
    assert measure(folder).kind == kind


def test_a_script_is_charged_what_it_claims() -> None:
    entry = Entry(name="a", engine="scripted", scripted=Scripted(size_gb=2.5, kv_gb_per_1k=1))
    model = find(entry, base=Path(), environ={})
    assert limits(model, GIB).charge_bytes == 5 * GIB // 2
    assert model.size is not None
    assert model.size.kv_bytes_per_token == GIB // 1000
    assert (
        limits(find(Entry(name="b", engine="scripted"), base=Path(), environ={}), GIB).charge_bytes
        == 0
    )
