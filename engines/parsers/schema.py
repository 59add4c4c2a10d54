"""What a request says about its tools: which names exist, and the types of their arguments.

Formats like XML carry every value as text. The declared JSON-schema type decides what it becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engines.parsers.json_text import dump, load
from engines.parsers.python_text import literal

_MAX_DEPTH = 8
_KINDS: dict[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip


class Tools:
    """The tools of one request, in the OpenAI form or as the bare function."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool.get("function") or tool for tool in tools]
        self._parameters: dict[str, Mapping[str, Any]] = {
            function["name"]: function.get("parameters") or function.get("input_schema") or {}
            for function in functions
            if isinstance(function, Mapping) and isinstance(function.get("name"), str)
        }

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def functions(self) -> list[dict[str, Any]]:
        """The tools in the OpenAI form, each with parameters."""
        return [
            {"type": "function", "function": {"name": name, "parameters": dict(parameters)}}
            for name, parameters in self._parameters.items()
        ]

    def declares(self, name: str) -> bool:
        return name in self._parameters

    def declares_key(self, name: str, key: str) -> bool:
        return key in properties(self._parameters.get(name, {}))

    def value(self, name: str, key: str, text: str, *, guess: bool = False) -> str:
        """`text`, the value of argument `key` of tool `name`, as JSON text.

        It becomes the declared type it can be read as, else a string. Without a declared type it
        is an object or array if it reads as one, and with `guess` also any other JSON value.
        """
        root = self._parameters.get(name, {})
        types = types_of(properties(root).get(key), root)
        tried = types | {"null"} if types - {"string"} else types
        for kind, convert in _CONVERSIONS.items():
            if kind in tried and (found := convert(text)) is not None:
                return found
        if types:
            return dump(text)
        undeclared = _as_json(text)
        return undeclared if undeclared and (guess or undeclared[0] in "{[") else dump(text)


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def types_of(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Every type that `schema`, a part of `root`, allows, as far as it says so."""
    types: set[str] = set()
    level, followed = [schema], set[str]()
    for _ in range(_MAX_DEPTH + 1):
        mappings = [each for each in level if isinstance(each, Mapping)]
        types.update(*map(_own_types, mappings))
        level = [inner for each in mappings for inner in _inner(each, root, followed)]
    return types


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(filter(_is_text, _items(schema, "type")))
    types |= {_KINDS.get(type(value), "string") for value in _items(schema, "enum")}
    if "const" in schema:
        types.add(_KINDS.get(type(schema["const"]), "string"))
    return types


def _inner(schema: Mapping[str, Any], root: Mapping[str, Any], followed: set[str]) -> list[Any]:
    """What `schema` chooses from or refers to; each reference once, as they may go in circles."""
    inner = [each for word in ("anyOf", "oneOf", "allOf") for each in _items(schema, word)]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        inner.append(resolve(reference, root))
    return inner


def _items(schema: Mapping[str, Any], keyword: str) -> Sequence[Any]:
    """The list under `keyword`; clients send anything there."""
    found = schema.get(keyword)
    return found if isinstance(found, list) else ()


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """The part of `root` that a local reference like `#/$defs/unit` names."""
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _as_json(text: str) -> str | None:
    try:
        return dump(load(text))
    except ValueError:
        return None


def _as_null(text: str) -> str | None:
    return "null" if text.strip() in ("null", "None") else None


def _as_boolean(text: str) -> str | None:
    lowered = text.strip().lower()
    return lowered if lowered in ("true", "false") else None


def _as_integer(text: str) -> str | None:
    number = _as_number(text)
    if number is None:
        return None
    value = float(number) if not number.lstrip("-").isdigit() else 0.0
    if not value.is_integer():
        return None
    return number if number.lstrip("-").isdigit() else str(int(value))


def _as_number(text: str) -> str | None:
    found = _as_json(text)
    return found if found is not None and found[0] in "-0123456789" else None


def _as_container(opener: str) -> Callable[[str], str | None]:
    def convert(text: str) -> str | None:
        found = _as_json(text)
        if found is None and text.strip()[:1] == opener:
            found = _as_python(text)
        return found if found is not None and found[0] == opener else None

    return convert


def _as_python(text: str) -> str | None:
    """Models that think in Python write `{'a': True}`."""
    try:
        return dump(literal(text))
    except ValueError:
        return None


def _as_string(text: str) -> str | None:
    return dump(text)


_CONVERSIONS: dict[str, Callable[[str], str | None]] = {
    "null": _as_null,
    "boolean": _as_boolean,
    "integer": _as_integer,
    "number": _as_number,
    "array": _as_container("["),
    "object": _as_container("{"),
    "string": _as_string,
}
"""In the order they are tried: what more than one type could be is the narrowest of them.

A type that is not declared is never tried, so a declared string of digits stays a string. Null is
taken for any declared type but a plain string: it is how models leave an argument out.
"""
