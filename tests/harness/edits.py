"""Changes of a registry file, saved the ways that editors and deployments save."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Literal, assert_never

import msgspec
import yaml

How = Literal["write", "rename", "symlink", "signal", "admin"]


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What differs. `models` changes keys of entries by name, `scripted:` key by key.

    `text` is saved as it is and not remembered: the next edit starts from what was there before.
    """

    remove: tuple[str, ...] = ()
    add: tuple[dict[str, Any], ...] = ()
    models: dict[str, dict[str, Any]] = {}
    manager: dict[str, Any] = {}
    text: str | None = None


class Editor:
    """Owns a registry file: its document, and how it gets onto the disk."""

    def __init__(self, document: dict[str, Any], path: Path) -> None:
        self.document = copy.deepcopy(document)
        self._path = path
        self._links = 0

    def save(self, edit: Edit, how: How = "write", comment: str = "") -> None:
        text = edit.text
        if text is None:
            self.document = edited(self.document, edit)
            text = yaml.safe_dump(self.document)
        self.put(f"{text}\n# {comment}\n" if comment else text, how)

    def put(self, text: str, how: How = "write") -> None:
        """The file says `text` from now on."""
        match how:
            case "write" | "signal" | "admin":
                self._path.write_text(text)
            case "rename":
                self._replace(self._written(self._path.with_suffix(".new"), text))
            case "symlink":
                self._links += 1
                folder = self._path.with_name(f"version-{self._links}")
                folder.mkdir()
                link = self._path.with_suffix(".link")
                link.symlink_to(self._written(folder / "registry.yaml", text))
                self._replace(link)
            case _:
                assert_never(how)

    def _written(self, path: Path, text: str) -> Path:
        path.write_text(text)
        return path

    def _replace(self, other: Path) -> None:
        os.replace(other, self._path)


def edited(document: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """A new document; the given one stays as it is."""
    changed = copy.deepcopy(document)
    changed["manager"] = {**changed.get("manager", {}), **edit.manager}
    kept = [entry for entry in changed["models"] if entry["name"] not in edit.remove]
    for entry in kept:
        for key, value in edit.models.get(entry["name"], {}).items():
            entry[key] = {**entry.get(key, {}), **value} if key == "scripted" else value
    changed["models"] = [*kept, *copy.deepcopy(list(edit.add))]
    return changed
