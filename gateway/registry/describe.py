"""What a key takes and what was found instead, in an operator's words. Pure."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from gateway.registry.env import has_reference
from gateway.registry.schema import SIZE, fields_of
from gateway.registry.yaml_tree import Mapping, Node, Sequence, resolve

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}


def describe(hint: Any) -> str:
    """`a whole number from 0 to 65535`, `one of "a", "b"`, `a list, each item text`."""
    hint, metas = _unwrap(hint)
    if any((meta.extra or {}).get("unit") == SIZE for meta in metas):
        return f'a size{_range(metas)}: a number of GiB, or text such as "80GB" or "512MB"'
    if hint in _WORDS:
        return _WORDS[hint] + _range(metas)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = sorted(fields_of(hint).values(), key=lambda info: not info.required)
        names = [info.name for info in fields]
        return f"a mapping with {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"
    return _describe_generic(hint) + _range(metas)


def _describe_generic(hint: Any) -> str:
    origin, members = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member) for member in members if member is not type(None))
    if origin is Literal:
        names = ", ".join(f'"{name}"' for name in members)
        return f"one of {names}" if len(members) > 1 else names
    if origin is tuple:
        return f"a list, each item {describe(members[0])}"
    if origin is list:
        return "a list"
    return "a mapping"


def literals(hint: Any) -> tuple[str, ...]:
    """Every word that `hint` takes."""
    return tuple(_literals(hint))


def _literals(hint: Any) -> Iterator[str]:
    hint, _ = _unwrap(hint)
    if get_origin(hint) is Literal:
        yield from map(str, get_args(hint))
    elif get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _literals(member)


def shown(node: Node) -> str:
    """What was written, cut short; a reference stays a reference, its value may be a secret."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    if has_reference(node.text):
        return f"the value of {node.text[:80]!r}"
    value = resolve(node.text) if node.plain else node.text
    if value is None:
        return "nothing"
    if not isinstance(value, str):
        return node.text
    return repr(value[:60] + "..." if len(value) > 60 else value)


def _unwrap(hint: Any) -> tuple[Any, list[Meta]]:
    metas: list[Meta] = []
    while hasattr(hint, "__metadata__"):
        metas += [meta for meta in hint.__metadata__ if isinstance(meta, Meta)]
        hint = hint.__origin__
    return hint, metas


def _range(metas: list[Meta]) -> str:
    """` from 1 to 64`, ` greater than 0`, ` of 1 to 256 characters`."""
    bounds = {
        name: value
        for meta in metas
        for name in ("ge", "gt", "le", "max_length", "pattern")
        if (value := getattr(meta, name)) is not None
    }
    words = ""
    if "ge" in bounds and "le" in bounds:
        words = f" from {bounds['ge']:g} to {bounds['le']:.10g}"
    elif "gt" in bounds:
        words = f" greater than {bounds['gt']:g} and at most {bounds['le']:.10g}"
    elif "max_length" in bounds:
        words = f" of 1 to {bounds['max_length']} characters"
    if "pattern" in bounds:
        words += "".join(f" {meta.description}" for meta in metas if meta.pattern)
    return words
