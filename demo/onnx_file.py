"""Reads the graph of an ONNX file: its nodes and its stored tensors, and nothing else of it.

ONNX is protobuf; the numbers below are the fields of onnx.proto3. Reading them here takes less than
the package that could.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP = 1, 2, 3, 4
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_FLOATS, _TENSOR_INTS = 1, 2, 4, 5
_TENSOR_LONGS, _TENSOR_NAME, _TENSOR_RAW = 7, 8, 9

_TYPES = {
    1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2",
    11: "<f8",
}  # fmt: skip

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class Node:
    """One operation; inputs and outputs are names of values."""

    name: str = ""
    op: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Graph:
    """Nodes in the order of the file, stored tensors by name."""

    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)


def read_graph(data: bytes) -> Graph:
    """Raises `ValueError` for bytes that are no ONNX model."""
    graph = Graph()
    for number, value in _fields(memoryview(data)):
        if number == _MODEL_GRAPH and isinstance(value, memoryview):
            _read_graph(value, graph)
    if not graph.nodes:
        raise ValueError("this is no ONNX model: it has no graph")
    return graph


def _read_graph(data: memoryview, graph: Graph) -> None:
    for number, value in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == _GRAPH_NODE:
            graph.nodes.append(_node(value))
        elif number == _GRAPH_INITIALIZER:
            name, tensor = _tensor(value)
            graph.tensors[name] = tensor


def _node(data: memoryview) -> Node:
    node = Node()
    for number, value in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == _NODE_INPUT:
            node.inputs.append(_text(value))
        elif number == _NODE_OUTPUT:
            node.outputs.append(_text(value))
        elif number == _NODE_NAME:
            node.name = _text(value)
        elif number == _NODE_OP:
            node.op = _text(value)
    return node


def _tensor(data: memoryview) -> tuple[str, Array]:
    dims: list[int] = []
    name, kind, raw = "", 1, b""
    for number, value in _fields(data):
        if number == _TENSOR_DIMS:
            dims += _numbers(value)
        elif number == _TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == _TENSOR_NAME and isinstance(value, memoryview):
            name = _text(value)
        elif number in (_TENSOR_RAW, _TENSOR_FLOATS) and isinstance(value, memoryview):
            raw += bytes(value)
        elif number in (_TENSOR_INTS, _TENSOR_LONGS):
            raw += np.array(_numbers(value)).astype(_TYPES[kind]).tobytes()
    if kind not in _TYPES:
        raise ValueError(f"the ONNX tensor {name} has a type that is not read here ({kind})")
    return name, np.frombuffer(raw, _TYPES[kind]).reshape(dims)


def _numbers(value: int | memoryview) -> list[int]:
    """Repeated integers, which may be packed."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number - 2**64 if number >= 2**63 else number)
    return numbers


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of one protobuf message: their numbers and values."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(data, at)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"this is no ONNX model: a field of wire type {wire_type}")
        if at + size > len(data):
            raise ValueError("this is no whole ONNX model: it ends in the middle of a field")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number and where the next byte is."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("this is no ONNX model: a number without an end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
