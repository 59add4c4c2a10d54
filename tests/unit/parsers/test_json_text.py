"""JSON read in pieces is what `json` reads at once, and breaks where it must."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.parsers.json_text import JsonScan, dump, load

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def scan(text: str, size: int) -> tuple[JsonScan, str, int]:
    """The scan after `text` in pieces of `size`, its output, and how far it read."""
    reading, pos = JsonScan(), 0
    for end in range(size, len(text) + size, size):
        pos = reading.advance(text, pos, min(end, len(text)))
    return reading, reading.take(), pos


@given(value=st.dictionaries(st.text(), VALUES, max_size=4), ascii_only=st.booleans())
@settings(max_examples=40, deadline=None)
def test_reads_what_json_writes(value: dict[str, object], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    for size in (1, 3, len(text)):
        reading, out, pos = scan(text + " rest", size)
        assert reading.done
        assert pos == len(text)
        assert out == text or json.loads(out) == value


@pytest.mark.parametrize(
    "text",
    [
        "{a: 1}", "{'a': 1}", '{"a" 1}', '{"a": 1,}', '{"a": 1]', "[1 2]", "[1,,2]", "[,]", "}",
        '{"a": tru}', '{"a": 01}', '{"a": 1.}', '{"a": .5}', '{"a": +1}', '{"a": NaN}',
        '{"a": "\\q"}', '{"a": "\\u12g4"}', '{"a": "x" "y"}', '{"a": {]}',
        "{1: 2}", '{"a"}', '[1:2]', "[tru", '{"a": 1e}',
    ],
)  # fmt: skip
def test_breaks_on_what_is_no_json(text: str) -> None:
    for size in (1, len(text)):
        reading, _, _ = scan(text + " ", size)
        assert not reading.done
        assert reading.broken


def test_control_characters_in_strings_are_escaped() -> None:
    _, out, _ = scan('{"a": "x\ny\tz\x00"}', 4)
    assert json.loads(out) == {"a": "x\ny\tz\x00"}


def test_depth_has_no_limit_and_needs_no_stack() -> None:
    text = "[" * 20_000 + "]" * 20_000
    reading, _, pos = scan(text, len(text))
    assert reading.done
    assert pos == len(text)


def test_loading_and_dumping_know_only_json() -> None:
    for text in ("NaN", "Infinity", "[" * 100_000, "1" * 10_000):
        with pytest.raises(ValueError, match=r"."):
            load(text)
    with pytest.raises(ValueError, match=r"."):
        dump(float("inf"))
    assert dump("\ud800ü") == '"\\ud800\\u00fc"'
    assert dump("ü") == '"ü"'
