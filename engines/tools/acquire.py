"""Fetches a model from the hub.

Each file comes under the name of its checksum, is checked, and is then moved to its place in a
folder of its commit; that folder becomes the target when it is complete. Whatever was interrupted
goes on where it was: checked files count, partial ones grow on, also for another commit that has
the same file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines import wire
from engines.tools import hub, manifest, staging
from engines.tools.choice import HubFile, chosen
from engines.tools.hub import Repository
from engines.tools.manifest import Report

STAGE = "downloading"


def acquire(task: wire.Acquire, report: Report) -> dict[str, Any]:
    """The manifest of what is in the target now. Raises `ToolError`, `OSError`."""
    target, folder = Path(task.target), Path(task.staging)
    report("asking the hub", 0, 0)
    repo = hub.repository(task.repo, task.revision)
    files = chosen(repo.files, task.kind, task.repo)
    if (there := _already(target, repo, files)) is not None:
        return {"manifest": there, "already": True}
    staging.check_target(target)
    with staging.staging(folder, target):
        made = _Staged(folder, repo)
        made.fetch_all(files, report)
        records = manifest.files_in(made.folder, report)
        document = manifest.write(made.folder, _fields(task, repo, records))
        staging.put(made.folder, folder, target)
    return {"manifest": document, "already": False}


class _Staged:
    """The files of one commit as they come together in a staging folder."""

    def __init__(self, staging_folder: Path, repo: Repository) -> None:
        self.folder = staging_folder / f"commit-{repo.commit}"
        self._parts = staging_folder / "parts"
        self._repo = repo

    def fetch_all(self, files: Sequence[HubFile], report: Report) -> None:
        """Raises `ToolError`; what has come by then stays."""
        self._parts.mkdir(exist_ok=True)
        self.folder.mkdir(exist_ok=True)
        missing = [file for file in files if not self._is_there(file)]
        total = sum(file.size for file in files)
        done = total - sum(file.size for file in missing)
        parts = {file.digest: self._part_size(file) for file in missing}
        staging.check_room(self.folder, total - done - sum(parts.values()))
        for file in missing:
            before = done
            self._fetch(file, lambda have, before=before: report(STAGE, before + have, total))
            done += file.size
            report(STAGE, done, total)

    def _is_there(self, file: HubFile) -> bool:
        """Only checked files get to their places."""
        path = self.folder / file.path
        return path.is_file() and path.stat().st_size == file.size

    def _part(self, file: HubFile) -> Path:
        return self._parts / file.digest

    def _part_size(self, file: HubFile) -> int:
        part = self._part(file)
        return min(part.stat().st_size, file.size) if part.exists() else 0

    def _fetch(self, file: HubFile, hear: Any) -> None:
        part, place = self._part(file), self.folder / file.path
        hub.fetch(self._repo, file, part, hear)
        hub.check(file, part, self._repo.id)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        place.parent.mkdir(parents=True, exist_ok=True)
        part.rename(place)


def _already(target: Path, repo: Repository, files: Sequence[HubFile]) -> dict[str, Any] | None:
    """The manifest in the target, if that is this very commit, with every file of it in place."""
    found = manifest.read(target)
    if found is None or (found.get("repo"), found.get("commit")) != (repo.id, repo.commit):
        return None
    sizes = {file.path: file.size for file in files}
    for path, size in sizes.items():
        place = target / path
        if not place.is_file() or place.stat().st_size != size:
            return None
    return found


def _fields(task: wire.Acquire, repo: Repository, records: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "made_by": "acquire",
        "repo": repo.id,
        "revision": task.revision,
        "commit": repo.commit,
        "endpoint": hub.endpoint(),
        "kind": task.kind,
        "versions": manifest.versions(("mlx-gateway", "huggingface_hub")),
        "files": records,
    }
