"""The registry that was last served, kept so that a broken file does not keep a service down."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gateway.registry.yaml_tree import MAX_BYTES

MODE = 0o600
"""Like the registry itself it may hold keys."""


class LastGood:
    """The copy at `path`: the file's own text, so variables are resolved anew at every start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes | None:
        """The copy; None where there is none that can be read."""
        try:
            with self._path.open("rb") as stream:
                return stream.read(MAX_BYTES + 1)
        except OSError:
            return None

    def keep(self, text: bytes) -> str | None:
        """Replaces the copy, whole or not at all. Returns why it could not; raises nothing."""
        if self.read() == text:
            return None
        try:
            replace_file(self._path, text)
        except OSError as error:
            return (
                f"{self._path} cannot be written ({error.strerror or error}): should the registry "
                "break, a restart has nothing to fall back on"
            )
        return None


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; through a link, into what it leads to. Raises `OSError`.

    An existing file keeps its mode and, where we may say so, its owner; a new one is private.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "wb", opener=_private) as stream:
            stream.write(content)
            with contextlib.suppress(FileNotFoundError):
                before = path.stat()
                os.fchmod(stream.fileno(), before.st_mode & 0o7777)
                with contextlib.suppress(PermissionError):
                    os.fchown(stream.fileno(), before.st_uid, before.st_gid)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, MODE)
