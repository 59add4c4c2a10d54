"""Gemma 4: a channel of its own, `<|channel>thought` up to `<channel|>`."""

from engines.parsers.formats import Hints, ReasoningFormat

FORMAT = ReasoningFormat(
    names=("gemma4",),
    tags=(("<|channel>thought", "<channel|>"),),
    hints=Hints(
        template=(("<|channel>", "<channel|>"),), vocabulary=(("<|channel>", "<channel|>"),)
    ),
)
