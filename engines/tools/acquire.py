"""Fetches a model from the hub.

Each file comes under the name of its checksum and counts once that was checked; when all have come
they get their places in a folder, which becomes the target. Whatever was interrupted goes on where
it was, also when the hub has another commit by then: files that are the same are kept.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from typing import Any

from engines import wire
from engines.tools import hub, manifest, staging
from engines.tools.choice import HubFile, chosen
from engines.tools.errors import ToolError
from engines.tools.hub import Repository
from engines.tools.manifest import Report

STAGE = "downloading"
AT_ONCE = 4


def acquire(task: wire.Acquire, report: Report) -> dict[str, Any]:
    """Whether it was there already; its manifest is in the target. Raises `ToolError`."""
    target, folder = Path(task.target), Path(task.staging)
    report("asking the hub", 0, 0)
    repo = hub.repository(task.repo, task.revision)
    files = chosen(repo.files, task.kind, task.repo)
    if _is_in(target, repo, files):
        return {"already": True}
    staging.check_target(target)
    with staging.staging(folder, target):
        made = _Staged(folder, repo, files)
        made.fetch(report)
        made.assemble()
        records = manifest.files_in(made.folder, report)
        manifest.write(made.folder, _fields(task, repo, records))
        staging.put(made.folder, folder, target)
    return {"already": False}


class _Staged:
    """The files of one commit as they come together in a staging folder.

    `parts` holds what has come in part, `whole` what was checked, both by checksum; `folder` has
    every file in its place.
    """

    def __init__(self, staging_folder: Path, repo: Repository, files: Sequence[HubFile]) -> None:
        self.folder = staging_folder / f"commit-{repo.commit}"
        self._parts = staging_folder / "parts"
        self._whole = staging_folder / "whole"
        self._repo = repo
        self._files = files
        for each in (self.folder, self._parts, self._whole):
            each.mkdir(exist_ok=True)

    def fetch(self, report: Report) -> None:
        """Brings every file to `whole`. Raises `ToolError`; what has come by then stays."""
        missing = {file.digest: file for file in self._files if not self._is_there(file)}
        parts = {digest: self._part_size(file) for digest, file in missing.items()}
        total = sum({file.digest: file.size for file in self._files}.values())
        needed = sum(file.size for file in missing.values())
        staging.check_room(self.folder, needed - sum(parts.values()))
        progress = _Progress(report, total - needed, total, parts)
        pool = ThreadPoolExecutor(AT_ONCE, "download")
        try:
            running = [pool.submit(self._fetch, file, progress) for file in missing.values()]
            for one in as_completed(running):
                one.result()
        finally:
            progress.stop()
            pool.shutdown(cancel_futures=True)

    def assemble(self) -> None:
        """Moves every file to its place in `folder`."""
        same: dict[str, list[Path]] = defaultdict(list)
        for file in self._files:
            if not self._is_placed(file):
                same[file.digest].append(self.folder / file.path)
        for digest, places in same.items():
            for place in places:
                place.parent.mkdir(parents=True, exist_ok=True)
            whole = self._whole / digest
            for place in places[1:]:
                shutil.copyfile(whole, place)
            whole.rename(places[0])

    def _is_there(self, file: HubFile) -> bool:
        return (self._whole / file.digest).is_file() or self._is_placed(file)

    def _is_placed(self, file: HubFile) -> bool:
        return _has(self.folder, file)

    def _part_size(self, file: HubFile) -> int:
        part = self._parts / file.digest
        return min(part.stat().st_size, file.size) if part.exists() else 0

    def _fetch(self, file: HubFile, progress: _Progress) -> None:
        part = self._parts / file.digest
        hub.fetch(self._repo, file, part, lambda have: progress.show(file.digest, have))
        hub.check(file, part, self._repo.id)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(self._whole / file.digest)
        progress.show(file.digest, file.size)


class _Progress:
    """Of all files together; called from every thread that downloads."""

    def __init__(self, report: Report, done: int, total: int, parts: dict[str, int]) -> None:
        self._report = report
        self._done = done
        self._total = total
        self._parts = dict(parts)
        self._lock = Lock()
        self._stopped = False

    def stop(self) -> None:
        """After a failure: what else is on its way ends with its next piece."""
        self._stopped = True

    def show(self, digest: str, have: int) -> None:
        """Raises `ToolError` when it was stopped."""
        if self._stopped:
            raise ToolError("another file could not be fetched")
        with self._lock:
            self._parts[digest] = have
            self._report(STAGE, self._done + sum(self._parts.values()), self._total)


def _has(folder: Path, file: HubFile) -> bool:
    place = folder / file.path
    return place.is_file() and place.stat().st_size == file.size


def _is_in(target: Path, repo: Repository, files: Sequence[HubFile]) -> bool:
    """Whether the target is this very commit, with every file of it in place."""
    found = manifest.read(target)
    if found is None or (found.get("repo"), found.get("commit")) != (repo.id, repo.commit):
        return False
    return all(_has(target, file) for file in files)


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
