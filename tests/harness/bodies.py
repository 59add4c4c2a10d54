"""JSON bodies for a struct: valid by its type, nearly valid, and arbitrary."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

MAX_OPTIONAL = 6
"""Of the fields that may be left out so many are given at most: more only hide one another."""

MAX_ITEMS = 3
MODEL = "scripted"
WORDS = (
    *("text", "function", "json_object", "json_schema", "image_url", "message", "input_text"),
    *("function_call", "function_call_output", "reasoning", "web_search", "auto", "custom"),
)
Strategy = st.SearchStrategy[Any]

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=MAX_ITEMS) | st.dictionaries(TEXT, inner, max_size=MAX_ITEMS)
    ),
    max_leaves=8,
)


@cache
def valid(kind: type[msgspec.Struct]) -> Strategy:
    """Objects that the struct takes, by its types: rules between fields may still be broken."""
    return _of(inspect.type_info(kind))


@st.composite
def nearly_valid(draw: st.DrawFn, kind: type[msgspec.Struct]) -> Any:
    """A valid object with one value, somewhere in it, replaced, dropped or added."""
    body = copy.deepcopy(draw(valid(kind)))
    at: Any = body
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return body
        key = draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            break
        at = at[key]
    match draw(st.sampled_from(["replace", "drop", "add"])):
        case "replace":
            at[key] = draw(JSON)
        case "drop":
            del at[key]
        case _ if isinstance(at, dict):
            at[draw(TEXT)] = draw(JSON)
        case _:
            at.append(draw(JSON))
    return body


def any_body(kind: type[msgspec.Struct]) -> st.SearchStrategy[bytes]:
    """The bytes of a body of one of the kinds, or bytes that are no JSON at all."""
    values = (valid(kind) | nearly_valid(kind) | nearly_valid(kind) | JSON).map(encoded)
    return st.one_of(values, values, values, st.binary(max_size=40))


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def _of(kind: inspect.Type) -> Strategy:
    match kind:
        case inspect.StructType():
            return _struct(kind)
        case inspect.UnionType():
            return st.one_of([_of(member) for member in kind.types])
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.ListType():
            most = min(MAX_ITEMS, kind.max_length or MAX_ITEMS)
            return st.lists(_of(kind.item_type), min_size=kind.min_length or 0, max_size=most)
        case inspect.DictType():
            keys = _of(kind.key_type).map(str)
            return st.dictionaries(keys, _of(kind.value_type), max_size=MAX_ITEMS)
        case _:
            return _scalar(kind)


def _scalar(kind: inspect.Type) -> Strategy:
    match kind:
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.IntType():
            return st.integers(kind.ge, kind.le if kind.lt is None else kind.lt - 1)
        case inspect.FloatType():
            least = kind.gt if kind.ge is None else kind.ge
            most = kind.lt if kind.le is None else kind.le
            return st.floats(
                least, most, exclude_min=kind.gt is not None, exclude_max=kind.lt is not None
            )
        case inspect.StrType():
            least_length = kind.min_length or 0
            return st.text(
                st.characters(codec="utf-8"),
                min_size=least_length,
                max_size=min(least_length + 12, kind.max_length or 12),
            )
        case _:
            return JSON


@st.composite
def _object(
    draw: st.DrawFn, needed: dict[str, Strategy], optional: dict[str, Strategy]
) -> dict[str, Any]:
    given = {name: draw(strategy) for name, strategy in needed.items()}
    if optional:
        names = st.lists(st.sampled_from(list(optional)), unique=True, max_size=MAX_OPTIONAL)
        given |= {name: draw(optional[name]) for name in draw(names)}
    return given


def _struct(kind: inspect.StructType) -> Strategy:
    needed: dict[str, Strategy] = {}
    optional: dict[str, Strategy] = {}
    for field in kind.fields:
        (needed if field.required else optional)[field.encode_name] = _field(field)
    if kind.tag_field is not None:
        needed[kind.tag_field] = st.just(kind.tag)
    return _object(needed, optional)


def _field(field: inspect.Field) -> Strategy:
    """Free text is a good word where only some count, or nothing would get past it."""
    match field.encode_name:
        case "model":
            return st.sampled_from([MODEL] * 9 + ["nothing"])
        case "keep_alive":
            return st.sampled_from([None, -1, 60, -0.5])
        case "timeout":
            return st.sampled_from([None, 1e-6, 20, 1000])
        case "type" if isinstance(field.type, inspect.StrType):
            return st.sampled_from(WORDS)
        case _ if isinstance(field.type, inspect.AnyType):
            # Known and not served: hardly any value passes, and one of them is enough of a test.
            return st.one_of(*[st.none()] * 8, JSON)
        case _:
            return _of(field.type)
