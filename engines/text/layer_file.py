"""One prompt cache entry as a file: safetensors, written slice by slice and checked when read.

The tensors are the layers' states; what in a state is no array, the layers' classes and the tokens
are in the header. A CRC of all before it is the last tensor, as it is only known then. Files are
written here rather than by MLX because that writes an entry in one go, which can take a second.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm import __version__ as mlx_lm_version
from mlx_lm.models import cache as layer_classes

from engines.text.prompt_cache import Layers, nbytes_of, trimmable, unpack

SLICE_BYTES = 8 * 2**20
"""Written between two steps at most."""

FORMAT = f"1 mlx-lm {mlx_lm_version}"
"""Files of another form or of other layer classes are of no use."""

MOST_HEADER_BYTES = 64 * 2**20

_CHECKSUM = "crc32"
_CHECKSUM_BYTES = 4
_LENGTH_BYTES = 8
_TYPES = {
    mx.bool_: "BOOL",
    mx.uint8: "U8",
    mx.int8: "I8",
    mx.uint16: "U16",
    mx.int16: "I16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.uint64: "U64",
    mx.int64: "I64",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.float32: "F32",
}


class BadFile(Exception):
    """It is damaged, or of something else than it says."""


class Unstorable(Exception):
    """Layers of a kind that cannot be made again from a file."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a file says about itself. `nbytes` is what its entry takes in memory."""

    format: str
    fingerprint: str
    key: bytes
    whole: bool
    """Its layers cannot be trimmed."""
    nbytes: int


class Writing:
    """An entry on its way into a file that is open for it; `advance` until that says it is done."""

    def __init__(self, descriptor: int, fingerprint: str, key: bytes, layers: Layers) -> None:
        """Takes the descriptor over. Raises `Unstorable`, and then does not."""
        arrays, header = _described(fingerprint, key, layers)
        self.nbytes = len(header) + sum(int(a.nbytes) for _, a in arrays) + _CHECKSUM_BYTES
        self._descriptor = descriptor
        self._slices = self._content(header, [array for _, array in arrays])

    def advance(self) -> bool:
        """Writes one slice; True when that was the last. Raises `OSError`."""
        piece = next(self._slices, None)
        if piece is None:
            self.close()
            return True
        while piece:
            piece = piece[os.write(self._descriptor, piece) :]
        return False

    def close(self) -> None:
        """Lets go of the file and the layers; again it does nothing."""
        self._slices = iter(())
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def _content(header: bytes, arrays: list[Any]) -> Iterator[memoryview]:
        yield memoryview(header)
        checksum = zlib.crc32(header)
        for array in arrays:
            flat = array.reshape(-1).view(mx.uint8) if array.size else array
            mx.eval(flat)
            data = memoryview(flat).cast("B") if array.size else memoryview(b"")
            for start in range(0, data.nbytes, SLICE_BYTES):
                piece = data[start : start + SLICE_BYTES]
                checksum = zlib.crc32(piece, checksum)
                yield piece
        yield memoryview(checksum.to_bytes(_CHECKSUM_BYTES, "little"))


def read_label(path: Path) -> Label:
    """Reads the header alone. Raises `BadFile` and `OSError`."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if not 0 < length <= MOST_HEADER_BYTES:
            raise BadFile("its header has no sensible length")
        header = stream.read(length)
    try:
        said = json.loads(header)
        data = int(said[_CHECKSUM]["data_offsets"][1])
        about = said["__metadata__"]
        label = Label(
            format=str(about["format"]),
            fingerprint=str(about["fingerprint"]),
            key=base64.b64decode(about["tokens"], validate=True),
            whole=about["whole"] == "true",
            nbytes=int(about["nbytes"]),
        )
        unpack(label.key)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BadFile(f"its header cannot be read: {error}") from error
    if path.stat().st_size != _LENGTH_BYTES + length + data:
        raise BadFile("its length is not what its header says")
    return label


def read_layers(path: Path) -> Layers:
    """The layers of a file, real and checked. Raises `BadFile` and `OSError`."""
    try:
        _check(path)
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, about = loaded
        arrays.pop(_CHECKSUM)
        mx.eval(list(arrays.values()))
        scalars = json.loads(about["scalars"])
        states = tree_unflatten([*arrays.items(), *scalars.items()])
        classes = [_class(name) for name in json.loads(about["classes"])]
        return [made.from_state(state) for made, state in zip(classes, states, strict=True)]
    except OSError:
        raise
    except Exception as error:  # what a library says of a file that was not made here
        raise BadFile(f"{type(error).__name__}: {error}") from error


def _described(fingerprint: str, key: bytes, layers: Layers) -> tuple[list[tuple[str, Any]], bytes]:
    """The arrays in order of their place, and the beginning of the file."""
    leaves = tree_flatten([layer.state for layer in layers])
    arrays = [(name, leaf) for name, leaf in leaves if isinstance(leaf, mx.array)]
    scalars = {name: leaf for name, leaf in leaves if not isinstance(leaf, mx.array)}
    classes = [type(layer).__name__ for layer in layers]
    for layer, name in zip(layers, classes, strict=True):
        if getattr(layer_classes, name, None) is not type(layer):
            raise Unstorable(f"its layers are {name}")
    header: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "tokens": base64.b64encode(key).decode(),
            "whole": "false" if trimmable(layers) else "true",
            "nbytes": str(nbytes_of(key, layers)),
            "classes": json.dumps(classes),
        }
    }
    offset = 0
    for name, array in arrays:
        if array.dtype not in _TYPES:
            raise Unstorable(f"its layers hold {array.dtype}")
        place = [offset, offset := offset + int(array.nbytes)]
        header[name] = {
            "dtype": _TYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": place,
        }
    place = [offset, offset + _CHECKSUM_BYTES]
    header[_CHECKSUM] = {"dtype": "U32", "shape": [1], "data_offsets": place}
    try:
        header["__metadata__"]["scalars"] = json.dumps(scalars)
    except TypeError as error:
        raise Unstorable(str(error)) from error
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return arrays, len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _check(path: Path) -> None:
    """Raises `BadFile` when this is not what was written."""
    left = path.stat().st_size - _CHECKSUM_BYTES
    checksum = 0
    with path.open("rb") as stream:
        while left > 0:
            piece = stream.read(min(left, SLICE_BYTES))
            if not piece:
                raise BadFile("it is shorter than it was")
            checksum = zlib.crc32(piece, checksum)
            left -= len(piece)
        if int.from_bytes(stream.read(), "little") != checksum:
            raise BadFile("its checksum is wrong")


def _class(name: str) -> Any:
    made = getattr(layer_classes, name, None)
    if not isinstance(made, type) or not hasattr(made, "from_state"):
        raise BadFile(f"there are no layers {name}")
    return made
