"""Prompt cache entries that outlast the process: a folder of files for one model, within bounds.

The work thread owns it. Files come into place by renaming, so a reader never sees half of one. Two
gateways may share a cache folder: a file that is not there any more is no fault, and what another
one has written is found when the folder is looked at, at load and before each file that is written.
Nothing here fails a call: an error is logged, and writing pauses for a while.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engines import wire
from engines.text.layer_file import (
    FORMAT,
    BadFile,
    Label,
    Unstorable,
    Writing,
    read_label,
    read_layers,
)
from engines.text.prompt_cache import Layers, trimmable, usable_tokens

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
TEMPORARY = ".tmp"

ABANDONED_S = 3600.0
"""A file in the making that nobody has touched for so long is from a process that was killed."""

PAUSE_S = 300.0
"""After a failed write, as on a full disk, nothing is written for so long."""


@dataclass(slots=True)
class Stored:
    """A file with what it says; `size` in bytes, `used_at` in seconds since 1970."""

    path: Path
    label: Label
    size: int
    used_at: float


class DiskCache:
    """The files in `given.folder`, by packed tokens. Raises `OSError` when it cannot be used."""

    def __init__(self, given: wire.DiskCache, clock: Callable[[], float] = time.time) -> None:
        self._given = given
        self._folder = Path(given.folder)
        self._clock = clock
        self._files: dict[str, Stored] = {}
        self._paused_until = 0.0
        self.hits = 0
        self.bad_files = 0
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self._look()
        self._make_room(0)

    @property
    def entries(self) -> int:
        return len(self._files)

    @property
    def nbytes(self) -> int:
        return sum(stored.size for stored in self._files.values())

    @property
    def pause_s(self) -> float:
        """Seconds for which nothing is written."""
        return max(0.0, self._paused_until - self._clock())

    def find(self, prompt: bytes, least: int) -> tuple[Stored, int] | None:
        """The file that stands for most tokens of a packed prompt, and how many those are.

        None when there is none for `least` tokens or more.
        """
        best, most = None, least - 1
        for stored in self._files.values():
            length = usable_tokens(stored.label.key, prompt, whole=stored.label.whole)
            if length > most and not self._too_old(stored):
                best, most = stored, length
        return None if best is None else (best, most)

    def load(self, stored: Stored) -> Layers | None:
        """The layers of a file; None when it has gone or is bad, and then it is removed."""
        try:
            layers = read_layers(stored.path)
            os.utime(stored.path)
        except FileNotFoundError:
            self._files.pop(stored.path.name, None)
            return None
        except (BadFile, OSError) as error:
            self._reject(stored.path, error)
            return None
        stored.used_at = self._clock()
        self.hits += 1
        return layers

    def begin(self, key: bytes, layers: Layers) -> FileWriting | None:
        """An entry on its way into its file; None when it has no place here, or not now."""
        if self.pause_s or self._covered(key, layers):
            return None
        path = self._folder / f"{_name(key)}.{os.getpid()}{TEMPORARY}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.pause(error)
            return None
        try:
            writing = Writing(descriptor, self._given.fingerprint, key, layers)
        except Unstorable as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            log.warning("a prompt cannot be kept on disk: %s", error)
            return None
        if writing.nbytes > self._given.max_bytes:
            writing.close()
            path.unlink(missing_ok=True)
            return None
        self._look()
        self._make_room(writing.nbytes)
        return FileWriting(self, writing, path, key)

    def keep(self, temporary: Path, key: bytes) -> None:
        """Puts a finished file into its place. Raises `OSError`."""
        path = self._folder / (_name(key) + SUFFIX)
        temporary.replace(path)
        self._take_in(path)
        if path.name in self._files and not self._files[path.name].label.whole:
            for stored in list(self._files.values()):
                if len(stored.label.key) < len(key) and key.startswith(stored.label.key):
                    self._remove(stored)
        self._make_room(0)

    def clear(self, matches: Callable[[bytes], bool]) -> tuple[int, int]:
        """Removes files whose packed tokens match; how many those were, and their bytes."""
        self._look()
        gone = [stored for stored in self._files.values() if matches(stored.label.key)]
        for stored in gone:
            self._remove(stored)
        return len(gone), sum(stored.size for stored in gone)

    def pause(self, error: OSError) -> None:
        """Nothing is written for a while."""
        self._paused_until = self._clock() + PAUSE_S
        log.warning(
            "prompts are not kept in %s for %g s: %s",
            self._folder,
            PAUSE_S,
            error.strerror or error,
        )

    def _covered(self, key: bytes, layers: Layers) -> bool:
        whole = not trimmable(layers)
        return any(
            stored.label.key == key or (not whole and stored.label.key.startswith(key))
            for stored in self._files.values()
        )

    # --- the folder -----------------------------------------------------------------------------

    def _look(self) -> None:
        """Takes in what is there, and removes what is of no use."""
        there = set()
        for found in self._listed():
            if found.name.endswith(TEMPORARY):
                self._sweep(found)
            elif found.name.endswith(SUFFIX):
                there.add(found.name)
                if found.name not in self._files:
                    self._take_in(Path(found.path))
        for name in self._files.keys() - there:
            del self._files[name]

    def _listed(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as listing:
                yield from list(listing)
        except FileNotFoundError:
            return  # the gateway has removed it with all that was in it
        except OSError as error:
            self.pause(error)

    def _sweep(self, found: os.DirEntry[str]) -> None:
        with contextlib.suppress(OSError):  # its owner may have renamed it meanwhile
            if found.stat().st_mtime < self._clock() - ABANDONED_S:
                os.unlink(found.path)

    def _take_in(self, path: Path) -> None:
        try:
            label, status = read_label(path), path.stat()
            stored = Stored(path, label, status.st_size, status.st_mtime)
            if label.format != FORMAT or label.fingerprint != self._given.fingerprint:
                path.unlink(missing_ok=True)
            elif path.name != _name(label.key) + SUFFIX:
                raise BadFile("it is of other tokens than its name says")
            else:
                self._files[path.name] = stored
        except FileNotFoundError:
            return
        except (BadFile, OSError) as error:
            self._reject(path, error)

    def _reject(self, path: Path, error: Exception) -> None:
        log.warning("the cached prompt in %s is bad and removed: %s", path, error)
        self.bad_files += 1
        self._files.pop(path.name, None)
        with contextlib.suppress(OSError):  # it is not looked at again in either case
            path.unlink(missing_ok=True)

    def _too_old(self, stored: Stored) -> bool:
        return stored.used_at < self._clock() - self._given.max_age_s

    def _make_room(self, nbytes: int) -> None:
        """Removes what is too old, then the least recently used, until so much can be added."""
        oldest_first = sorted(self._files.values(), key=lambda stored: stored.used_at)
        total = sum(stored.size for stored in oldest_first)
        for stored in oldest_first:
            if total + nbytes > self._given.max_bytes or self._too_old(stored):
                total -= stored.size
                self._remove(stored)

    def _remove(self, stored: Stored) -> None:
        self._files.pop(stored.path.name, None)
        try:
            stored.path.unlink(missing_ok=True)
        except OSError as error:
            self.pause(error)


class FileWriting:
    """One entry being written; it holds the layers until it is done or given up."""

    def __init__(self, disk: DiskCache, writing: Writing, path: Path, key: bytes) -> None:
        self.key = key
        self.failed = False
        """It was worth a file, and could not be written."""
        self._disk = disk
        self._writing = writing
        self._path = path

    def advance(self) -> bool:
        """Writes one slice; True when it is over, kept or not."""
        try:
            if not self._writing.advance():
                return False
            self._disk.keep(self._path, self.key)
        except OSError as error:
            self.failed = True
            self.give_up()
            self._disk.pause(error)
        return True

    def give_up(self) -> None:
        """Leaves no file behind."""
        self._writing.close()
        with contextlib.suppress(OSError):  # a later sweep removes it
            self._path.unlink(missing_ok=True)


def _name(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()
