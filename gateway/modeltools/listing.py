"""What a model is made of, from a folder or from what the hub says, in one form."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engines.wire import MANIFEST
from gateway.registry.kinds import (
    context_length_of,
    dtype_bytes_of,
    kind_of,
    kv_layers_of,
    state_bytes_of,
)
from gateway.registry.sizes import MAX_CONFIG_BYTES, MAX_HEADER_BYTES, Size, SizeError, measure

_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_WIDTHS = {**_FLOATS, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
"""Bytes of one value; every other type takes one."""
MAX_FILES = 100_000


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """`types` counts bytes by the type of the weights, as far as it is known.

    `size` is None where no engine could load it, which `problem` explains. `library` is what the
    weights name as their format ("mlx", "pt"). `origin` is the manifest of what was fetched or
    converted, or the repository and its commit.
    """

    place: str
    files: tuple[tuple[str, int], ...]
    config: dict[str, Any] = {}
    chat_template: bool = False
    types: dict[str, int] = {}
    library: str | None = None
    size: Size | None = None
    problem: str | None = None
    origin: dict[str, Any] = {}
    gated: bool = False

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)

    def named(self, *endings: str) -> list[str]:
        """The files whose names end so."""
        return [name for name, _ in self.files if name.endswith(endings)]


def of_folder(folder: Path) -> Listing:
    """Reads file headers and small JSON files only. Raises `OSError` where there is no folder."""
    files: list[tuple[str, int]] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and len(files) < MAX_FILES:
            files.append((path.relative_to(folder).as_posix(), path.stat().st_size))
    if not files and not folder.is_dir():
        raise NotADirectoryError(f"no such folder: {folder}")
    size: Size | None = None
    problem: str | None = None
    try:
        size = measure(folder)
    except SizeError as error:
        problem = error.reason
    library, types = _headers(folder, [name for name, _ in files if name.endswith(".safetensors")])
    return Listing(
        place=str(folder),
        files=tuple(files),
        config=_json(folder / "config.json"),
        chat_template=any((folder / name).is_file() for name in _TEMPLATES)
        or bool(_json(folder / "tokenizer_config.json").get("chat_template")),
        types=types,
        library=library,
        size=size,
        problem=problem,
        origin=_origin(_json(folder / MANIFEST)),
    )


def of_hub(found: Mapping[str, Any]) -> Listing:
    """From the result of a `LookUp`."""
    files = tuple((str(name), int(size)) for name, size in found["files"])
    config = dict(found["config"])
    types = {name: count * _WIDTHS.get(name, 1) for name, count in found["types"].items()}
    names = {name for name, _ in files}
    weights = [size for name, size in files if name.endswith(".safetensors")]
    problem = None if weights and config else "no config.json" if weights else "no *.safetensors"
    size = None
    if problem is None:
        kind = kind_of(
            config,
            sentence_transformer="modules.json" in names,
            name=str(found["repo"]).rpartition("/")[2],
        )
        size = _size(config, kind, sum(weights), types)
    return Listing(
        place=str(found["repo"]),
        files=files,
        config=config,
        chat_template=bool(found["chat_template"]),
        types=types,
        library="mlx" if "mlx" in found["tags"] else None,
        size=size,
        problem=problem,
        origin={"repo": found["repo"], "commit": found["commit"]},
        gated=bool(found["gated"]),
    )


def _size(config: dict[str, Any], kind: Any, weights: int, types: Mapping[str, int]) -> Size:
    """As `measure`, from the sizes of files: their headers count too, which is next to nothing."""
    floats = {name: count for name, count in types.items() if name in _FLOATS}
    most = max(floats, key=lambda name: floats[name]) if floats else ""
    dtype_bytes = _FLOATS.get(most) or dtype_bytes_of(config) or 2
    generates = kind in ("text", "vision")
    return Size(
        weights_bytes=weights,
        kind=kind,
        kv=kv_layers_of(config, dtype_bytes) if generates else (),
        state_bytes=state_bytes_of(config, dtype_bytes) if generates else 0,
        context_length=context_length_of(config),
    )


def _headers(folder: Path, names: list[str]) -> tuple[str | None, dict[str, int]]:
    """The format that safetensors files name, and bytes by type; nothing of a broken file."""
    library: str | None = None
    types: Counter[str] = Counter()
    for name in names:
        header = _header(folder / name)
        metadata = header.pop("__metadata__", None)
        if isinstance(metadata, dict) and library is None:
            library = str(metadata.get("format") or "") or None
        for tensor in header.values():
            begin, end = _range(tensor)
            types[str(tensor.get("dtype"))] += end - begin
    return library, dict(types)


def _header(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length)) if length <= MAX_HEADER_BYTES else {}
    except (OSError, ValueError, struct.error, RecursionError):
        return {}
    entries = header.items() if isinstance(header, dict) else ()
    return {str(name): value for name, value in entries if isinstance(value, dict)}


def _range(tensor: Mapping[str, Any]) -> tuple[int, int]:
    offsets = tensor.get("data_offsets")
    if isinstance(offsets, list) and len(offsets) == 2 and all(type(at) is int for at in offsets):
        return offsets[0], offsets[1]
    return 0, 0


def _json(path: Path) -> dict[str, Any]:
    """An object; an empty one where there is none that can be understood."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _origin(manifest: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("made_by", "repo", "revision", "commit", "recipe", "source", "made_at")
    return {key: manifest[key] for key in kept if manifest.get(key) is not None}
