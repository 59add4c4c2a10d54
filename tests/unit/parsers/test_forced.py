"""The table of forced calls: what a row's grammar allows, its family's parser reads back."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from engines.parsers import tools
from engines.parsers.bodies import ANNOTATIONS, CannotForce, without
from engines.parsers.tools.deepseek import token
from engines.parsers.tools.forced import ROWS, Form, form_of
from tests.unit.parsers.forcing import Vocabulary, answer, grammar_of, parsed

WITHOUT_ROW: dict[str, str] = {}
"""Families that cannot be forced, with the reason."""


def tool(name: str, required: list[str], properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, **more}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


KILOMETRES = {"type": "number", "minimum": 0, "maximum": 1000}
"""Bounds keep random digits within what a float can hold."""

TOOLS = [
    tool(
        "get_weather",
        ["city"],
        {
            "city": {"type": "string", "minLength": 1, "maxLength": 12},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
    ),
    tool(
        "write_file",
        ["path", "content"],
        {
            "path": {"type": "string", "pattern": "^[a-z/]{1,8}\\.txt$"},
            "content": {"type": "string"},
            "overwrite": {"type": "boolean"},
            "mode": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]},
        },
    ),
    tool(
        "plan-trip",
        ["stops", "how"],
        {
            "how": {"$ref": "#/$defs/How"},
            "stops": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {
                    "type": "object",
                    "properties": {"at": {"type": "string"}, "km": KILOMETRES},
                    "required": ["at"],
                    "additionalProperties": False,
                },
            },
        },
        **{"$defs": {"How": {"type": "string", "enum": ["by_car", "by_train"]}}},
    ),
    tool("now", [], {}),
]
SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}

CASES = [
    (family, number, tail)
    for family, forms in ROWS.items()
    for number, form in enumerate(forms)
    for tail in dict.fromkeys(end for end, _ in form.begins)
]


def of(family: str, tail: str) -> str:
    return "<|start|>assistant" if family == "harmony" else tail


def tools_for(form: Form) -> list[dict[str, Any]]:
    return [each for each in TOOLS if form.names.fullmatch(each["function"]["name"])]


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(("family", "number", "tail"), CASES)
def test_what_a_row_allows_is_one_call(
    family: str, number: int, tail: str, *, special: bool
) -> None:
    form, vocabulary, tail = ROWS[family][number], Vocabulary.of(special=special), of(family, tail)
    for declared in tools_for(form):
        grammar = grammar_of(vocabulary, form, [declared], tail)
        for seed in range(2):
            said = answer(vocabulary, grammar, seed)
            ((name, arguments),) = parsed(vocabulary, said, family, TOOLS, tail)
            assert name == declared["function"]["name"]
            jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize(("family", "number", "tail"), CASES)
def test_several_calls_are_calls(family: str, number: int, tail: str) -> None:
    form, vocabulary, tail = ROWS[family][number], Vocabulary.of(special=True), of(family, tail)
    grammar = grammar_of(vocabulary, form, tools_for(form), tail, several=True)
    counts = []
    for seed in range(6, 12):
        said = answer(vocabulary, grammar, seed, ends=(0.25, 1.0)[seed % 2])
        found = parsed(vocabulary, said, family, TOOLS, tail)
        counts.append(len(found))
        for name, arguments in found:
            jsonschema.validate(arguments, SCHEMAS[name])
    assert min(counts) == 1
    assert (max(counts) > 1) == (form.between is not None)


def test_every_family_has_a_row_or_a_reason() -> None:
    families = {each.names[0] for each in tools.FORMATS}
    assert families == set(ROWS) | set(WITHOUT_ROW)
    assert not set(ROWS) & set(WITHOUT_ROW)


@pytest.mark.parametrize(
    ("family", "template", "number"),
    [
        ("mistral", "[TOOL_CALLS] and [ARGS]", 0),
        ("mistral", "[TOOL_CALLS]", 1),
        ("granite", "<tool_call> {} </tool_call>", 0),
        ("granite", "<tool_call>", 1),
        ("granite", "<|tool_call|>", 2),
        ("nemotron", "<TOOLCALL>", 0),
        ("nemotron", "<function=", 1),
        ("deepseek_v3", token("tool sep") + "\n```json", 0),
        ("deepseek_v3", token("tool sep"), 1),
        ("deepseek_v3", "", 2),
        ("glm4", r"'</arg_key>\n<arg_value>'", 0),
        ("glm4", "</arg_key><arg_value>", 1),
        ("pythonic", "<|tool_call_start|>", 0),
        ("pythonic", "", 1),
    ],
)
def test_the_template_chooses_the_row(family: str, template: str, number: int) -> None:
    assert form_of(family, template) is ROWS[family][number]


def test_a_family_without_rows_has_no_form() -> None:
    assert form_of("unheard_of", "") is None


@pytest.mark.parametrize(
    ("family", "declared", "says"),
    [
        ("pythonic", tool("a b", [], {}), "'a b' is no name"),
        ("pythonic", tool("f", ["a-b"], {"a-b": {}}), "argument 'a-b'"),
        ("qwen3_coder", tool("f", ["a>b"], {"a>b": {}}), "argument 'a>b'"),
        ("kimi_k2", tool("a b", [], {}), "'a b' is no name"),
    ],
)
def test_what_a_format_cannot_spell_is_refused(
    family: str, declared: dict[str, Any], says: str
) -> None:
    with pytest.raises(CannotForce, match=says):
        grammar_of(Vocabulary.of(special=True), ROWS[family][-1], [declared])


def test_an_argument_that_cannot_be_spelled_is_left_out_where_it_may_be() -> None:
    vocabulary = Vocabulary.of(special=True)
    declared = tool("f", ["a"], {"a": {"type": "integer"}, "a>b": {"type": "integer"}})
    grammar = grammar_of(vocabulary, ROWS["qwen3_coder"][0], [declared])
    said = answer(vocabulary, grammar, 1)
    ((_, arguments),) = parsed(vocabulary, said, "qwen3_coder", [declared], "")
    assert set(arguments) == {"a"}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("family", ["qwen3_coder", "glm4", "gemma4", "pythonic", "hermes"])
def test_references_that_go_in_circles_and_branch_are_followed_once(family: str) -> None:
    vocabulary = Vocabulary.of(special=True)
    declared = tool("f", ["a", "b"], {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/m"}})
    declared["function"]["parameters"]["$defs"] = {
        "n": {"anyOf": [{"$ref": "#/$defs/n"}] * 50 + [{"type": "string"}]},
        "m": {"type": "array", "items": {"$ref": "#/$defs/m"}, "maxItems": 1},
    }
    grammar = grammar_of(vocabulary, ROWS[family][-1], [declared])
    ((_, arguments),) = parsed(vocabulary, answer(vocabulary, grammar, 2), family, [declared], "")
    assert isinstance(arguments["a"], str)
    assert isinstance(arguments["b"], list)


@pytest.mark.parametrize("names", ["properties", "patternProperties", "$defs", "definitions"])
def test_names_are_no_annotations(names: str) -> None:
    kept = {names: {"title": {"type": "integer"}}, "enum": [{"default": 1}]}
    given = {**kept, names: {"title": {"type": "integer", "title": "T"}}, "title": "T"}
    assert without(given, ANNOTATIONS) == kept
