"""How large a model in a folder is, from file headers alone: nothing is loaded.

A safetensors file begins with a little-endian u64 length and that many bytes of JSON, which gives
every tensor's type, shape and byte range; the sum of the ranges is what the loaded weights take.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

from gateway.registry.kinds import (
    KvLayers,
    context_length_of,
    dtype_bytes_of,
    kind_of,
    kv_layers_of,
    state_bytes_of,
)
from gateway.registry.schema import Kind

MAX_CONFIG_BYTES = 16 * 2**20
MAX_HEADER_BYTES = 100 * 2**20
"""As the safetensors library has it."""

KV_STEP_TOKENS = 256
"""Caches grow by so many tokens at once."""

_T = TypeVar("_T")
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_INDEX = "model.safetensors.index.json"


class SizeError(Exception):
    """The folder holds no complete model. `reason` is a clause such as `no such folder: /m/x`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What one model takes. `fingerprint` changes when its config or any weight file does.

    `kv` is empty when the config does not tell; `state_bytes` is per sequence.
    """

    weights_bytes: int
    kind: Kind
    kv: tuple[KvLayers, ...] = ()
    state_bytes: int = 0
    context_length: int | None = None
    fingerprint: str = ""

    @property
    def kv_bytes_per_token(self) -> int:
        """While no window is full, which is the most."""
        return sum(group.count * group.bytes_per_token for group in self.kv)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of one sequence of `tokens`."""
        rounded = -(-tokens // KV_STEP_TOKENS) * KV_STEP_TOKENS
        grown = (
            group.count * group.bytes_per_token * min(rounded, group.window or rounded)
            for group in self.kv
        )
        return sum(grown) + self.state_bytes


class _Tensor(msgspec.Struct):
    dtype: str
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def measure(path: Path) -> Size:
    """Reads a model folder. Raises `SizeError` when anything that a load needs is missing."""
    try:
        return _measure(path)
    except OSError as error:
        name = Path(error.filename or path).name
        raise SizeError(f"cannot read {name}: {error.strerror or error}") from error


def _measure(path: Path) -> Size:
    if not path.is_dir():
        raise SizeError(f"not a folder: {path}" if path.exists() else f"no such folder: {path}")
    raw = _read(path / "config.json", MAX_CONFIG_BYTES)
    config = _json(raw, dict[str, Any], "config.json")
    files = weight_files(path)
    weights, by_type = 0, Counter[str]()
    for file in files:
        file_bytes, file_types = _weights(file)
        weights += file_bytes
        by_type += file_types
    dtype_bytes = _activation_bytes(by_type) or dtype_bytes_of(config) or 2
    modules = path / "modules.json"
    kind = kind_of(
        config,
        sentence_transformer=modules.exists(),
        cross_encoder=modules.exists() and b"cross_encoder" in _read(modules, MAX_CONFIG_BYTES),
        name=_called(path),
    )
    generates = kind in ("text", "vision")
    return Size(
        weights_bytes=weights,
        kind=kind,
        kv=kv_layers_of(config, dtype_bytes) if generates else (),
        state_bytes=state_bytes_of(config, dtype_bytes) if generates else 0,
        context_length=context_length_of(config),
        fingerprint=_fingerprint(raw, files),
    )


def _called(path: Path) -> str:
    """What its makers call it: a snapshot of the Hugging Face cache has its name further up."""
    above = (part.name for part in path.parents if part.name.startswith("models--"))
    return next(above, path.name).rpartition("--")[2]


def _read(file: Path, limit: int) -> bytes:
    if not file.is_file():
        raise SizeError(f"no {file.name} in {file.parent}")
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise SizeError(f"{file.name} is larger than {limit} bytes")
    return data


def _json(raw: bytes, kind: type[_T], name: str) -> _T:
    """Other people's JSON as `kind`. Raises `SizeError`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise SizeError(f"{name} cannot be understood: {error}") from error


def weight_files(path: Path) -> list[Path]:
    """The files that a load reads, all of which exist. Raises `SizeError`, `OSError`."""
    if (index := path / _INDEX).is_file():
        return _indexed(path, index)
    for pattern in ("model*.safetensors", "*.safetensors", "weights.npz"):
        if files := sorted(path.glob(pattern)):
            broken = [file.name for file in files if not file.exists()]
            if broken:
                raise SizeError(f"{broken[0]} is a link to nothing; the download is incomplete")
            return files
    raise SizeError(f"no weights (*.safetensors) in {path}")


def _indexed(path: Path, index: Path) -> list[Path]:
    found = _json(_read(index, MAX_HEADER_BYTES), _Index, index.name)
    names = set(found.weight_map.values())
    if any(
        PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in names
    ):
        raise SizeError(f"{index.name} names files outside the folder")
    files = [path / name for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SizeError(f"{missing[0]}{more} of {len(files)} weight files missing in {path}")
    if not files:
        raise SizeError(f"{index.name} names no weights")
    return files


def _weights(file: Path) -> tuple[int, Counter[str]]:
    """Bytes of the tensors in one file, and bytes by type. Raises `SizeError`, `OSError`."""
    size = file.stat().st_size
    if file.suffix != ".safetensors":
        return size, Counter()
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise SizeError(f"{file.name} is truncated or no safetensors file")
        header = stream.read(length)
    by_type = Counter[str]()
    total = end = 0
    for tensor in _tensors(file.name, header):
        begin, last = tensor.data_offsets
        if not 0 <= begin <= last:
            raise SizeError(f"the header of {file.name} cannot be understood: negative range")
        by_type[tensor.dtype] += last - begin
        total += last - begin
        end = max(end, last)
    if 8 + length + end > size:
        raise SizeError(
            f"{file.name} is truncated: {8 + length + end} bytes promised, {size} there"
        )
    return total, by_type


def _tensors(name: str, header: bytes) -> list[_Tensor]:
    what = f"the header of {name}"
    entries = _json(header, dict[str, msgspec.Raw], what)
    entries.pop("__metadata__", None)
    return [_json(bytes(entry), _Tensor, what) for entry in entries.values()]


def _activation_bytes(by_type: Counter[str]) -> int | None:
    """Bytes of the floating type that most weights have: activations and KV follow it.

    In a quantised model that is the type of its scales.
    """
    floats = {name: count for name, count in by_type.items() if name in _FLOAT_BYTES}
    return _FLOAT_BYTES[max(floats, key=lambda name: floats[name])] if floats else None


def _fingerprint(config: bytes, files: list[Path]) -> str:
    digest = hashlib.sha256(config)
    for file in files:
        stat = file.stat()
        digest.update(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]
