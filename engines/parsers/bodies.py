"""How the arguments of a forced call are written, as grammars, by their JSON schema.

The other way round from the readers: what these allow, the family's reader reads back as arguments
that fit the schema. Schemas of tools are followed as far as they can be: a keyword that no grammar
can express is left out, since a tool call without it is better than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engines.parsers.json_text import dump
from engines.parsers.lark import End, Lark
from engines.parsers.schema import properties, resolve, types_of

_LENIENT: dict[str, Any] = {"lenient": True, "coerce_one_of": True}
_PYTHON_ESCAPES = '"\\bfnrt'
"""The escapes that mean the same in JSON and in Python."""
_NO_LINE_ENDS = r"(?:[^\n](?:(?s:.*)[^\n])?)?"
"""Text that neither begins nor ends with a line end."""
_MAX_DEPTH = 8
_DEFINITIONS = ("$defs", "definitions")
SCHEMAS_BY_NAME = ("properties", "patternProperties", *_DEFINITIONS)
"""Keywords whose own keys are names, or patterns of names, and no keywords."""

Schema = Mapping[str, Any]

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$comment"})
"""Keywords that say nothing of what is valid."""


class Tool(NamedTuple):
    """One tool of a request; `parameters` is a JSON schema of an object."""

    name: str
    parameters: Schema


Arguments = Callable[[Lark, Tool], str]
"""The expression of all arguments of one call."""


class CannotForce(Exception):
    """A tool that the family's format cannot spell."""


def without(schema: Any, keywords: Collection[str]) -> Any:
    """`schema` without `keywords`; properties and values that are called so stay."""
    if isinstance(schema, list):
        return [without(each, keywords) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _inside(key, value, keywords) for key, value in schema.items() if key not in keywords
    }


def _inside(key: str, value: Any, keywords: Collection[str]) -> Any:
    if key in ("enum", "const"):
        return value
    if key in SCHEMAS_BY_NAME and isinstance(value, Mapping):
        return {name: without(each, keywords) for name, each in value.items()}
    return without(value, keywords)


def json_arguments(lark: Lark, tool: Tool) -> str:
    """One JSON object."""
    schema = {"type": "object", **tool.parameters}
    if "properties" in schema and "patternProperties" not in schema:
        # A model that may invent arguments does so without end.
        schema.setdefault("additionalProperties", False)
    return lark.json(schema, **_LENIENT)


class Values(NamedTuple):
    """How a format writes one value, whatever ends it included.

    `text` is a free string under a schema, `word` one of an enumeration, `other` anything that is
    written as JSON. Without `text`, strings are written as JSON too.
    """

    other: Callable[[Lark, Schema], str]
    text: Callable[[Lark, Schema], str] | None = None
    word: Callable[[Lark, str], str] = Lark.plain


@dataclass(frozen=True, slots=True)
class Named:
    """Arguments one by one, each with its name.

    `key` is what stands before and behind a name; names that `keys` does not match are not read
    back. `between` stands between two arguments.
    """

    key: tuple[str, str]
    keys: re.Pattern[str]
    values: Values
    before: str = ""
    between: str = ""
    behind: str = ""

    def __call__(self, lark: Lark, tool: Tool) -> str:
        required = _list(tool.parameters.get("required"))
        begin, end = map(lark.markup, self.key)
        writer = _Writer(lark, self.values, tool.parameters)
        given: list[tuple[str, bool]] = []
        for key, schema in properties(tool.parameters).items():
            if self.keys.fullmatch(key):
                value = writer.value(schema)
                given.append((f"{begin} {lark.plain(key)} {end} {value}", key in required))
            elif key in required:
                raise CannotForce(f"its argument {key!r} cannot be written in this format")
        arguments = _sequence(lark, given, self.between)
        return f"{lark.markup(self.before)} {arguments} {lark.markup(self.behind)}"


def _sequence(lark: Lark, items: Sequence[tuple[str, bool]], between: str) -> str:
    """All items in their order; those that are not required may be missing."""
    first = rest = ""
    separator = lark.markup(between)
    for item, required in reversed(items):
        later = f"({separator} {item})"
        earlier = f"{item} {rest}"
        if not required:
            later += "?"
            earlier += f" | {first}" if first else ' | ""'
        first, rest = lark.rule(earlier), lark.rule(f"{later} {rest}")
    return first


@dataclass(frozen=True, slots=True)
class _Writer:
    """The expressions of values whose schemas are parts of `root`.

    Each reference is followed once: they may go in circles, and branch on each round.
    """

    lark: Lark
    values: Values
    root: Schema
    followed: dict[str, str | None] = field(default_factory=dict)

    def value(self, schema: Any, depth: int = 0) -> str:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            schema = {}
        reference = schema.get("$ref")
        if isinstance(reference, str) and len(schema) == 1:
            return self._referred(reference, depth)
        lark, values, root = self.lark, self.values, self.root
        types = types_of(schema, root)
        if values.text is None or (types and "string" not in types):
            return values.other(
                lark, {key: root[key] for key in _DEFINITIONS if key in root} | schema
            )
        if isinstance(reference, str):
            return self._referred(reference, depth)
        if choices := _list(schema.get("anyOf")) or _list(schema.get("oneOf")):
            return lark.either([self.value(choice, depth + 1) for choice in choices])
        if listed := [schema["const"]] if "const" in schema else _list(schema.get("enum")):
            words = [each if isinstance(each, str) else dump(each) for each in listed]
            return lark.either([values.word(lark, word) for word in words])
        return values.text(lark, schema if types == {"string"} else {})

    def _referred(self, reference: str, depth: int) -> str:
        if reference not in self.followed:
            self.followed[reference] = None
            self.followed[reference] = self.value(resolve(reference, self.root), depth + 1)
        # None is one that leads back to itself.
        return self.followed[reference] or self.value({})


def _list(value: object) -> list[Any]:
    """What should be a list; clients send anything."""
    return value if isinstance(value, list) else []


def _limits(schema: Schema) -> list[str]:
    """The expressions that a string has to match."""
    least, most = schema.get("minLength"), schema.get("maxLength")
    limits = []
    if isinstance(least, int) or isinstance(most, int):
        upper = most if isinstance(most, int) else ""
        limits.append(f"(?s:.{{{least if isinstance(least, int) else 0},{upper}}})")
    if isinstance(searched := schema.get("pattern"), str):
        limits.append(_whole(searched))
    return limits


def _whole(searched: str) -> str:
    """A schema's pattern may match anywhere in a string; here it has to match all of it."""
    ends = searched.endswith("$") and not searched.endswith("\\$")
    inner = searched.removeprefix("^")
    inner = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", inner[:-1] if ends else inner)
    begin = "" if searched.startswith("^") else "(?s:.*)"
    return f"{begin}(?:{inner}){'' if ends else '(?s:.*)'}"


# --- values ---------------------------------------------------------------------------------


def tagged(end: End, banned: tuple[str, ...], opener: str = "", *, trimmed: bool = False) -> Values:
    """A value is bare text up to its closing tag; `banned` are tags that would end it too.

    With an `opener`, strings alone stand between that and the tag. `trimmed` values lose a line end
    at either side when they are read.
    """

    def text(lark: Lark, schema: Schema) -> str:
        limits = [*_limits(schema), *([_NO_LINE_ENDS] if trimmed else [])]
        return f"{lark.markup(opener)} {lark.text_before(end, banned, limits)}"

    def word(lark: Lark, word: str) -> str:
        return f"{lark.markup(opener)} {lark.plain(word)} {lark.markup(str(end))}"

    def other(lark: Lark, schema: Schema) -> str:
        closing = "" if opener else lark.markup(str(end))
        return f"{lark.json(schema, **_LENIENT)} {closing}"

    return Values(other, text, word)


def _python(lark: Lark, schema: Schema) -> str:
    if schema.get("type") == "boolean" and not {"enum", "const"} & set(schema):
        return '("True" | "False")'
    return lark.json(schema, **_LENIENT, json_allowed_escapes=_PYTHON_ESCAPES)


PYTHON = Values(_python)
