"""The registry as a JSON Schema, for editors, from the structs that it is read with.

It says what `check` says of single values. What only the whole file shows (names twice, a variant
of nothing, missing files) is for `check` alone. Whatever is no text may also be written as
`${env:NAME}`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.registry.schema import (
    ApiKey,
    ContentionPolicy,
    Defaults,
    Entry,
    ExitStep,
    Manager,
    Registry,
    Scripted,
    Server,
    is_size,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PARTS: dict[str, type[msgspec.Struct]] = {
    part.__name__: part
    for part in (
        *(Registry, Manager, ContentionPolicy, Server, ApiKey, Defaults, Entry, Scripted, ExitStep),
    )
}
_SIZE = {"type": "string", "pattern": r"^ *\d+(\.\d+)? *([KMGTkmgt][Ii]?[Bb])? *$"}
_REFERENCE = {"type": "string", "pattern": r"\$\{env:[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}
_SCALARS = frozenset(("number", "integer", "boolean"))


def json_schema() -> dict[str, Any]:
    """The whole file's schema."""
    schema = msgspec.json.schema(Registry)
    for name, part in _PARTS.items():
        properties = schema["$defs"][name]["properties"]
        for field in msgspec.structs.fields(part):
            told = properties[field.encode_name]
            if is_size(field.type):
                _allow(told, _SIZE)
            if _holds_scalar(told):
                _allow(told, _REFERENCE)
    head = {"$schema": DIALECT, "title": "mlx-gateway registry"}
    return {**head, **schema}


def _holds_scalar(told: dict[str, Any]) -> bool:
    """Whether it is no text by itself, which may hold a reference anyway."""
    ways = told.get("anyOf") or [told]
    return any(way.get("type") in _SCALARS or "enum" in way for way in ways)


def _allow(told: dict[str, Any], way: dict[str, Any]) -> None:
    """One more way to write the value; what is told of it beside that stays."""
    if "anyOf" not in told:
        own = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "pattern", "$ref")
        told["anyOf"] = [{key: told.pop(key) for key in own if key in told}]
    told["anyOf"].append(way)
