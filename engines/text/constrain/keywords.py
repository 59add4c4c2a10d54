"""Where in a JSON schema a keyword stands that no grammar can express.

Only asked once a schema was refused: what is served is for the compiler to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engines.parsers.bodies import SCHEMAS_BY_NAME

UNSUPPORTED = frozenset(
    {
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
_BLAMED = {
    "Unknown format": ("format",),
    "oneOf constraints": ("oneOf",),
    "Pointer": ("$ref",),
    "Resource": ("$ref", "$schema"),
    "regex parse error": ("pattern", "patternProperties"),
    "Invalid type": ("type",),
    "multipleOf": ("multipleOf",),
    "min/maxProperties": ("minProperties", "maxProperties"),
}
"""The keywords that may be at fault, by what the compiler's complaint says."""

_SCHEMA = frozenset({"additionalItems", "additionalProperties", "items", "prefixItems"})
_CHOICES = frozenset({"allOf", "anyOf", "oneOf"})


def blamed(schema: Any, complaint: str) -> str | None:
    """The path, as `$.properties.a.not`, of what the compiler's `complaint` is about, if known."""
    wanted = next((words for said, words in _BLAMED.items() if said in complaint), UNSUPPORTED)
    found = [path for path, keyword in _keywords(schema, "$") if keyword in wanted]
    if wanted is not UNSUPPORTED and len(found) > 1:
        # Of several, the one whose value the complaint quotes.
        quoted = (path for path, keyword in _keywords(schema, "$", complaint) if keyword in wanted)
        return next(quoted, found[0])
    return next(iter(found), None)


def _keywords(schema: Any, path: str, quoted: str | None = None) -> Iterator[tuple[str, str]]:
    """Every keyword in `schema` with its path; with `quoted`, only those whose value is in it."""
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        here = f"{path}.{keyword}"
        if quoted is None or (isinstance(value, str) and value.lstrip("#") in quoted):
            yield here, keyword
        if keyword in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            for name, each in value.items():
                yield from _keywords(each, f"{here}.{name}", quoted)
        elif keyword in _SCHEMA | _CHOICES and isinstance(value, list):
            for index, each in enumerate(value):
                yield from _keywords(each, f"{here}[{index}]", quoted)
        elif keyword in _SCHEMA:
            yield from _keywords(value, here, quoted)
