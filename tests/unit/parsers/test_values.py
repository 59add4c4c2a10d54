"""Values that come as text: typed by the schema, and literals in Python's syntax."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.parsers import python_text
from engines.parsers.schema import Tools

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "real": {"type": "number"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "either": {"type": ["string", "null"]},
    "choice": {"enum": ["1", "2"]},
    "any_of": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "shared": {"$ref": "#/$defs/size"},
    "constant": {"const": 3},
    "untyped": {},
}
TOOLS = Tools(
    [
        {"type": "function", "function": {"name": "f", "parameters": {
            "properties": PROPERTIES, "$defs": {"size": {"type": "integer"}}}}},
        {"name": "g", "input_schema": {"properties": {"n": {"type": "integer"}}}},
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "5", "5"),
        ("text", "null", "null"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("whole", "5", 5),
        ("whole", " -5\n", -5),
        ("whole", "5.0", 5),
        ("whole", "5.5", "5.5"),
        ("whole", "five", "five"),
        ("whole", "null", None),
        ("whole", "123456789012345678901234567890", 123456789012345678901234567890),
        ("real", "1e3", 1000.0),
        ("real", "5", 5),
        ("real", "NaN", "NaN"),
        ("real", "1e999", "1e999"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("flag", "1", "1"),
        ("list", "[1, 2]", [1, 2]),
        ("list", "['a', None]", ["a", None]),
        ("list", "a, b", "a, b"),
        ("list", "{}", "{}"),
        ("map", '{"a": [1]}', {"a": [1]}),
        ("map", "{'a': True}", {"a": True}),
        ("map", "{'a'", "{'a'"),
        ("either", "null", None),
        ("either", "nil", "nil"),
        ("choice", "1", "1"),
        ("any_of", "7", 7),
        ("any_of", "seven", "seven"),
        ("shared", "7", 7),
        ("constant", "3", 3),
        ("untyped", "7", "7"),
        ("untyped", "[7]", [7]),
        ("missing", "7", "7"),
        ("missing", '{"a": 7}', {"a": 7}),
    ],
)
def test_a_value_becomes_its_declared_type(key: str, text: str, value: object) -> None:
    found = json.loads(TOOLS.value("f", key, text))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.timeout(30)
def test_references_that_go_in_circles_and_branch_are_followed_once() -> None:
    round_about = {"anyOf": [{"$ref": "#/$defs/a"}] * 50 + [{"type": "integer"}]}
    tool = {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": round_about}}
    assert Tools([{"name": "f", "parameters": tool}]).value("f", "x", "7") == "7"


def test_undeclared_values_are_guessed_where_the_format_does_so() -> None:
    assert TOOLS.value("f", "missing", "7", guess=True) == "7"
    assert TOOLS.value("nobody", "x", "true", guess=True) == "true"
    assert TOOLS.value("nobody", "x", "so", guess=True) == '"so"'


def test_tools_in_either_form() -> None:
    assert TOOLS.declares("f")
    assert TOOLS.value("g", "n", "4") == "4"
    assert not TOOLS.declares("h")
    assert not Tools([])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a' \"b\"", "ab"),
        ("r'a\\n'", "a\\n"),
        ("'a\\n\\x41\\u00fc\\q\\''", "a\nAü\\q'"),
        ("'''a 'b' \"c\"'''", "a 'b' \"c\""),
        ("1_000", 1000),
        ("-.5", -0.5),
        ("3.", 3),
        ("(1, [2, {'a': (3,)}])", [1, [2, {"a": [3]}]]),
        ("[True, False, None, true, false, null]", [True, False, None, True, False, None]),
        ("{}", {}),
    ],
)
def test_literals(text: str, value: object) -> None:
    assert python_text.literal(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "a", "1 2", "'a", "[1", "{1: 2}", "{'a' 1}", "f()", "[" * 200, "--1", "'\\", "1 if 2"],
)
def test_no_literals(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        python_text.literal(text)


@pytest.mark.parametrize(
    "text", ["f(1)", "[f(a=1) g()]", "[f(a=g())]", "[f(**a)]", "[f(a=1)", "[1]", "[f.]"]
)
def test_no_calls(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        python_text.calls(text)
