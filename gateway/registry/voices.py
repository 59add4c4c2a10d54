"""The voices of a speech model as its folder shows them. Reads names of files only."""

from __future__ import annotations

import zipfile
from pathlib import Path


def voices_in(folder: Path) -> tuple[str, ...]:
    """`voices/NAME.safetensors`, and the arrays in `voices.npz`; models may know more of their own.

    Nothing for a folder that is not there or cannot be read.
    """
    try:
        names = sorted(path.stem for path in folder.glob("voices/*.safetensors"))
        archive = folder / "voices.npz"
        if archive.is_file():
            with zipfile.ZipFile(archive) as packed:
                names += sorted(name.removesuffix(".npy") for name in packed.namelist())
    except (OSError, zipfile.BadZipFile):
        return ()
    return tuple(dict.fromkeys(names))
