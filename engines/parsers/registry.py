"""The families by name and alias, and by what a model's template and vocabulary show."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from engines.parsers import reasoning, tools, upstream
from engines.parsers.formats import Hints, ReasoningFormat, ToolFormat

_Format = TypeVar("_Format", ToolFormat, ReasoningFormat)

AUTO = "auto"
"""Resolved by `infer` where a model is loaded; unresolved it is a family of all usual markers."""


class Names(NamedTuple):
    """Every name and alias, without `auto`."""

    tools: frozenset[str]
    reasoning: frozenset[str]


def _by_name(formats: Sequence[_Format]) -> Mapping[str, _Format]:
    return {name: each for each in formats for name in each.names}


_TOOLS = _by_name(tools.FORMATS)
_REASONING = _by_name(reasoning.FORMATS)


def names() -> Names:
    return Names(frozenset(_TOOLS) - {AUTO}, frozenset(_REASONING) - {AUTO})


def tool_format(name: str | None) -> ToolFormat | None:
    """The family of `name`. Raises `ValueError` for an unknown name, and for mlx-lm's own."""
    return _find(_TOOLS, name, "tool")


def reasoning_format(name: str | None) -> ReasoningFormat | None:
    """The family of `name`. Raises `ValueError` for an unknown name."""
    return _find(_REASONING, name, "reasoning")


def _find(table: Mapping[str, _Format], name: str | None, kind: str) -> _Format | None:
    if name is None:
        return None
    if name in upstream.NAMES and kind == "tool":
        raise ValueError(f"the tool parser {name!r} is mlx-lm's own, and only text models have it")
    if name not in table:
        known = ", ".join(sorted(table))
        raise ValueError(f"there is no {kind} parser {name!r}; known are {known}")
    return table[name]


def markers() -> frozenset[str]:
    """What begins or ends calls and traces in any family; punctuation is left out."""
    tags = {tag for each in reasoning.FORMATS for pair in each.tags for tag in pair}
    calls = {marker for each in tools.FORMATS for marker in (*each.openers, *each.closers)}
    return frozenset(marker for marker in tags | calls if marker.startswith(("<", "[")))


def infer(template: str, vocabulary: Collection[str]) -> tuple[str | None, str | None]:
    """Names of the tool and the reasoning family that a model shows by its chat template.

    Where the template shows nothing, the tokens of `vocabulary` are looked at.
    """
    tool = _infer(tools.FORMATS, template, vocabulary)
    trace = _infer(reasoning.FORMATS, template, vocabulary)
    return tool, trace


def _infer(formats: Sequence[_Format], template: str, vocabulary: Collection[str]) -> str | None:
    def shown(groups: tuple[tuple[str, ...], ...], place: Collection[str]) -> bool:
        return any(all(text in place for text in group) for group in groups)

    hints: list[tuple[str, Hints]] = [(each.names[0], each.hints) for each in formats]
    for name, hint in hints:
        if shown(hint.template, template):
            return name
    return next((name for name, hint in hints if shown(hint.vocabulary, vocabulary)), None)
