"""Magistral: `[THINK]` tags."""

from engines.parsers.formats import Hints, ReasoningFormat

_TAGS = ("[THINK]", "[/THINK]")

FORMAT = ReasoningFormat(
    names=("mistral",), tags=(_TAGS,), hints=Hints(template=(("[THINK]",),), vocabulary=(_TAGS,))
)
