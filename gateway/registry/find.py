"""Where an entry's model is and how large it is: an entry in, a `Model` out. Reads files only.

Serving never downloads: a Hugging Face id counts as far as it is in the local cache.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.registry import units
from gateway.registry.kinds import KvLayers
from gateway.registry.schema import Entry, Kind
from gateway.registry.sizes import Size, SizeError, measure
from gateway.registry.warm import WarmPrompt

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_PART}(?:/{_PART})?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, complete: defaults merged, kind known, files found.

    `entry.kind` is never None here; it is `text` for a model whose files could not say.
    `kind_detected`: the files said it (or could not), not the operator. `path` is the folder to
    load, None for a script or when it is not known. `size` of a script is what it claims.
    `unavailable` is why it cannot be loaded, None when it can. `warm` are the prompts of its
    `warm_prompts`, read. A variant has everything of its base's but its own entry.
    """

    entry: Entry
    kind_detected: bool = False
    path: Path | None = None
    size: Size | None = None
    unavailable: str | None = None
    warm: tuple[WarmPrompt, ...] = ()


class NotFound(Exception):
    """The folder of an entry is not known; the message says what to do."""


def find(entry: Entry, *, base: Path, environ: Mapping[str, str]) -> Model:
    """The model of an entry that is no variant; relative paths count from `base`."""
    if entry.engine == "scripted":
        size = _claimed(entry)
        return _model(entry, size.kind, size=size)
    path: Path | None = None
    try:
        path = folder_of(entry, base=base, environ=environ)
        size = measure(path)
    except (NotFound, OSError) as error:
        return _model(entry, "text", unavailable=str(error))
    except SizeError as error:
        return _model(entry, "text", path=path, unavailable=error.reason)
    return _model(entry, size.kind, path=path, size=size)


def recheck(model: Model, *, base: Path, environ: Mapping[str, str]) -> Model:
    """`model` with its files looked at again, as they may have come, gone or changed.

    Equal to `model` when nothing has. A kind that the files gave is detected anew, so it can
    change when they come. It reads file headers: a missing folder costs one system call, a large
    model some milliseconds.
    """
    entry = model.entry
    if model.kind_detected:
        entry = msgspec.structs.replace(entry, kind=None)
    return find(entry, base=base, environ=environ)


def variant(entry: Entry, base: Model) -> Model:
    """The model of an entry with `of`, whose files are those of `base`."""
    return msgspec.structs.replace(base, entry=msgspec.structs.replace(entry, kind=base.entry.kind))


def _model(
    entry: Entry,
    kind: Kind,
    *,
    path: Path | None = None,
    size: Size | None = None,
    unavailable: str | None = None,
) -> Model:
    """`kind` counts where the entry has none."""
    detected = entry.kind is None
    return Model(
        entry=msgspec.structs.replace(entry, kind=kind) if detected else entry,
        kind_detected=detected,
        path=path,
        size=size,
        unavailable=unavailable,
    )


def _claimed(entry: Entry) -> Size:
    """What a scripted entry claims to take."""
    options = entry.scripted
    if options is None:
        return Size(weights_bytes=0, kind=entry.kind or "text", fingerprint="scripted")
    per_token = units.gib(options.kv_gb_per_1k) // 1000
    return Size(
        weights_bytes=units.gib(options.size_gb),
        kind=entry.kind or "text",
        kv=(KvLayers(1, per_token),) if per_token else (),
        context_length=entry.context_length,
        fingerprint=hashlib.sha256(msgspec.json.encode(options)).hexdigest()[:32],
    )


def folder_of(entry: Entry, *, base: Path, environ: Mapping[str, str]) -> Path:
    """The folder that an entry names, which need not exist. Raises `NotFound`."""
    if entry.path is not None:
        return _local(entry.path, base, environ)
    name = entry.source or entry.model or ""
    local = _local(name, base, environ)
    if name.startswith(("/", "./", "../", "~")) or local.is_dir():
        return local
    if not _HUB_ID.fullmatch(name) or ".." in name:
        raise NotFound(f'"{name}" is neither a folder that exists nor a Hugging Face id')
    return _snapshot(name, hub_cache(environ), sized=entry.estimated_memory_gb is not None)


def _local(name: str, base: Path, environ: Mapping[str, str]) -> Path:
    if "\0" in name:
        raise NotFound("a path cannot hold a NUL character")
    if name == "~" or name.startswith("~/"):
        name = environ.get("HOME", "~") + name[1:]
    return base / name


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The local Hugging Face cache, by the variables that its own tools go by."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return Path(environ[name])
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]) / "hub"
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '~')}/.cache"
    return Path(cache) / "huggingface" / "hub"


def _snapshot(hub_id: str, cache: Path, *, sized: bool) -> Path:
    """`models--org--name/snapshots/<what refs/main holds>`."""
    folder = cache / f"models--{hub_id.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text("utf-8")[:200].strip()
    except (OSError, UnicodeDecodeError):
        revision = ""
    if not _REVISION.fullmatch(revision) or revision in (".", ".."):
        unsized = "" if sized else "; until then set estimated_memory_gb, its size is unknown"
        raise NotFound(
            f"{hub_id} is not in the local Hugging Face cache {cache}, and serving never "
            f"downloads: run `hf download {hub_id}`{unsized}"
        )
    return folder / "snapshots" / revision
