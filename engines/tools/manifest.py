"""`model.manifest.json`: where a model's files are from, and what they were when written."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engines import wire

SCHEMA = 1
_CHUNK = 2**20

Report = Callable[[str, int, int], None]
"""Stage, bytes done, bytes in all (0: not known)."""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of the packages that are installed, and of Python and the system."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def sha256_of(path: Path, hear: Callable[[int], None] = lambda count: None) -> str:
    """Hex digest; `hear` gets the number of bytes read since it was last called."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            hear(len(chunk))
    return digest.hexdigest()


def files_in(folder: Path, report: Report, stage: str = "checksums") -> list[dict[str, Any]]:
    """Path, size and SHA-256 of every file below, but for the manifest."""
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != wire.MANIFEST
    )
    total, done, records = sum(path.stat().st_size for path in paths), 0, []
    for path in paths:
        digest = sha256_of(path)
        size = path.stat().st_size
        done += size
        report(stage, done, total)
        relative = path.relative_to(folder).as_posix()
        records.append({"path": relative, "size": size, "sha256": digest})
    return records


def write(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Puts the manifest into `folder`, as the last file. Raises `OSError`."""
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    document = {"schema": SCHEMA, "made_at": made_at, **fields}
    with (folder / wire.MANIFEST).open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return document


def read(folder: Path) -> dict[str, Any] | None:
    """None where there is none that can be understood."""
    try:
        document = json.loads((folder / wire.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
