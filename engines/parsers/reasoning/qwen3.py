"""Qwen 3: `<think>` and `</think>`; without both, everything is answer."""

from engines.parsers.formats import Hints, ReasoningFormat

TAGS = (("<think>", "</think>"),)

FORMAT = ReasoningFormat(
    names=("qwen3",),
    tags=TAGS,
    hints=Hints(template=(("<think>",), ("</think>",)), vocabulary=(("<think>", "</think>"),)),
)
