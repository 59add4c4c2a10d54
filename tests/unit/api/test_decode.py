"""Bytes to structs: what is wrong, where, and never anything but an `InvalidRequest`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.decode import BodyDecoder
from gateway.errors import InvalidRequest


class Inner(msgspec.Struct):
    count: int


class Body(msgspec.Struct):
    name: str
    count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    rate: float | None = None
    inner: Inner | None = None
    items: list[Inner] = []


decoder = BodyDecoder(Body)

BAD: list[tuple[bytes, str | None, str]] = [
    (b"", None, "the body is not valid JSON"),
    (b"{", None, "the body is not valid JSON"),
    (b"[]", None, "the body: expected `object`, got `array`"),
    (b"{}", "name", "name: this field is required"),
    (b'{"name": null}', "name", "name: expected `str`, got `null`"),
    (b'{"name": "x", "count": -1}', "count", "count: expected `int` >= 0"),
    (b'{"name": "x", "count": 1.5}', "count", "count: expected `int | null`, got `float`"),
    (b'{"name": "x", "count": -1.0}', "count", "count: expected `int` >= 0"),
    (b'{"name": "x", "inner": {}}', "inner.count", "inner.count: this field is required"),
    (b'{"name": "x", "items": [{"count": 1}, {}]}', "items[1].count", "items[1].count: this"),
    (b'{"name": "\xff"}', None, "the body is not valid UTF-8: byte 10 cannot be decoded"),
    (b'{"name": "x", "unknown": "\xff"}', None, "the body is not valid UTF-8: byte 26"),
    (b'{"count": 1.5, "name": ', None, "the body is not valid JSON"),
    (b'{"x": ' + b"[" * 100_000, None, "the body is nested too deeply"),
    (b'{"count": 1.5, "x": ' + b"[" * 100_000, None, "the body is nested too deeply"),
]


@pytest.mark.parametrize(("body", "param", "words"), BAD, ids=[str(row[0][:40]) for row in BAD])
def test_the_message_begins_with_the_field_at_fault(
    body: bytes, param: str | None, words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoder.decode(body)
    assert caught.value.param == param
    assert caught.value.message.startswith(words), caught.value.message


def test_a_whole_float_is_an_integer_where_one_is_asked_for() -> None:
    body = decoder.decode(b'{"name": "x", "count": 10.0, "rate": 2.0, "inner": {"count": 3.0}}')
    assert (body.count, body.rate, body.inner) == (10, 2.0, Inner(3))
    assert isinstance(body.count, int)


def test_a_float_in_a_list_stays_one() -> None:
    with pytest.raises(InvalidRequest, match="got `float`"):
        decoder.decode(b'{"name": "x", "items": [{"count": 1.0}]}')


@given(st.binary(max_size=80))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    for text in (body, b'{"name": "x", "count": 1.5, "y": ' + body):
        with pytest.raises(InvalidRequest):
            decoder.decode(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(JSON, JSON, JSON)
def test_any_json_is_decoded_or_refused_by_name(name: object, count: object, inner: object) -> None:
    import json

    body = json.dumps({"name": name, "count": count, "inner": inner}).encode()
    right = isinstance(name, str) and count is None and inner is None
    try:
        assert decoder.decode(body).name == name
    except InvalidRequest:
        assert not right
