"""Where models are on this machine: as a folder, in the Hugging Face cache, or where `acquire` puts
them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.wire import MANIFEST
from gateway.registry.find import NotFound, folder_of, hub_cache
from gateway.registry.places import places
from gateway.registry.schema import Entry

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,99}", re.ASCII)


def looks_like_id(name: str) -> bool:
    """Whether the hub could be asked for it."""
    return _HUB_ID.fullmatch(name) is not None and ".." not in name


def default_target(repo: str, environ: Mapping[str, str]) -> Path:
    """Where a model is put when nobody says where."""
    return places(environ).state / "models" / repo.replace("/", "--")


def staging_of(target: Path, what: str) -> Path:
    """Beside the target, so that the move is one step; found again by the next try."""
    return target.with_name(f".{target.name}.{what}")


def manifest_in(folder: Path) -> dict[str, Any]:
    """What a tool has written beside a model. Raises `OSError`, `ValueError`."""
    found: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return found


def find_local(name: str, revision: str | None, environ: Mapping[str, str]) -> Path:
    """The folder of a path or an id. Raises `NotFound`."""
    if revision is not None:
        return _snapshot(name, revision, environ)
    if looks_like_id(name) and not Path(name).is_dir():
        fetched = default_target(name, environ)
        if fetched.is_dir():
            return fetched
    folder = folder_of(Entry(name="it", model=name), base=Path.cwd(), environ=environ)
    if not folder.is_dir():
        raise NotFound(f"no such folder: {folder}")
    return folder


def _snapshot(name: str, revision: str, environ: Mapping[str, str]) -> Path:
    """Of the cache, by branch, tag or commit."""
    if not looks_like_id(name):
        raise NotFound(f"a revision goes with a Hugging Face id, and {name!r} is none")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise NotFound(f"{revision!r} is no revision")
    folder = hub_cache(environ) / f"models--{name.replace('/', '--')}"
    commit = revision
    if (ref := folder / "refs" / revision).is_file():
        commit = ref.read_text(encoding="utf-8")[:200].strip()
    found = folder / "snapshots" / commit
    if not _REVISION.fullmatch(commit) or not found.is_dir():
        raise NotFound(f"{name} at {revision} is not in the local Hugging Face cache")
    return found
