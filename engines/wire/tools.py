"""What the gateway's command line and `python -m engines.tools` say to each other.

One task goes to the process; it answers with any number of `Loading`, which also say that it lives,
and then one `ToolDone` or `ToolFailed`.
"""

from __future__ import annotations

from typing import Any, Literal

from engines.wire.base import Message, Part
from engines.wire.events import Loading

ToolKind = Literal["text", "vision", "embedding", "rerank", "transcription", "speech"]

ToolFailure = Literal["usage", "not_found", "refused", "unreachable", "failed"]
"""`refused`: the hub wants a token, or one with other rights."""


class Recipe(Part, frozen=True):
    """How weights are written; what is None is left to the library."""

    quantize: bool = False
    q_bits: int | None = None
    q_group_size: int | None = None
    q_mode: str = "affine"
    quant_predicate: str | None = None
    dtype: str | None = None


class LookUp(Message, frozen=True):
    """What the hub says about a model; nothing is downloaded but its small JSON files."""

    repo: str
    revision: str | None = None


class Acquire(Message, frozen=True):
    """Fetch a model into `target`, by way of `staging`, which is kept when that fails."""

    repo: str
    target: str
    staging: str
    revision: str | None = None
    kind: ToolKind = "text"


class Convert(Message, frozen=True):
    """Write the model in `source` anew into `target`. `record` goes into the manifest."""

    source: str
    target: str
    staging: str
    kind: ToolKind
    recipe: Recipe
    record: dict[str, Any] = {}


class ToolDone(Message, frozen=True):
    """`result` depends on the task."""

    result: dict[str, Any]


class ToolFailed(Message, frozen=True):
    code: ToolFailure
    message: str


ToTool = LookUp | Acquire | Convert
FromTool = Loading | ToolDone | ToolFailed

MANIFEST = "model.manifest.json"
"""What a folder made by one of these tools says of itself: where it is from and what is in it."""
