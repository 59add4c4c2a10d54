"""Which files of a repository an engine needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from engines import wire
from engines.tools.errors import ToolError


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub names it. `sha256` is known of large files, `git_id` of all others."""

    path: str
    size: int
    sha256: str | None = None
    git_id: str | None = None

    @property
    def digest(self) -> str:
        """Its name until it is in place. Raises `ToolError` where the hub gives none."""
        if (digest := self.sha256 or self.git_id) is None:
            raise ToolError(f"the hub gives no checksum of {self.path}, so it cannot be checked")
        return digest


_SMALL = (
    "*.json", "*.jsonl", "*.txt", "*.jinja", "*.model", "*.tiktoken", "*.py", "*.yaml", "LICENSE*",
    "README.md",
)  # fmt: skip
"""Configuration, tokenizers, templates, and what a person wants to read."""

_WEIGHTS = ("*.safetensors",)
_OLD_WEIGHTS = ("*.npz",)
_OF_KIND: dict[wire.ToolKind, tuple[str, ...]] = {"speech": ("*.wav", "*.pt")}
"""Voices are small tensors or recordings; a model of another kind has no use for such files."""

_ELSEWHERE = frozenset(
    ("onnx", "openvino", "coreml", "original", "gguf", "tensorrt", "flax", "metal", "runs", "logs")
)
"""Folders with the same model for other programs."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def chosen(files: Sequence[HubFile], kind: wire.ToolKind, repo: str) -> tuple[HubFile, ...]:
    """Raises `ToolError` where nothing in it could be loaded, or a name leads out of the folder."""
    for file in files:
        _check(file.path)
    here = [file for file in files if PurePosixPath(file.path).parts[0] not in _ELSEWHERE]
    weights = _matching(here, _WEIGHTS) or _matching(here, _OLD_WEIGHTS)
    if not weights:
        raise ToolError(f"{repo} has {_instead(here)}")
    wanted = {file.path for file in (*weights, *_matching(here, _SMALL))}
    wanted |= {file.path for file in _matching(here, _OF_KIND.get(kind, ()))}
    return tuple(file for file in files if file.path in wanted)


def _matching(files: Sequence[HubFile], patterns: Sequence[str]) -> list[HubFile]:
    return [file for file in files if any(fnmatchcase(file.path, each) for each in patterns)]


def _instead(files: Sequence[HubFile]) -> str:
    if _matching(files, ("*.gguf",)):
        return "GGUF files only, which MLX engines do not read: take the repository it was made of"
    if _matching(files, _PICKLES):
        return (
            "PyTorch pickles only, which run code when they are read: take a revision or a "
            "repository with safetensors"
        )
    return "no weights (*.safetensors)"


def _check(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or "\0" in path or ".." in parts:
        raise ToolError(f"the repository has a file with the unsafe name {path!r}")
