"""Formats and forced calls on real (small) models: what is promised is kept, beside other rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

import engines.text.engine
from engines import wire
from engines.base import EngineError
from engines.text.constrain import Constraint
from engines.text.model import LoadedModel, load
from tests.harness.schemas import SchemaMaker
from tests.real.test_parsing import AUTO, THOUGHT, TOOLS, calls, reason, trace
from tests.real.test_text_engine import HERMES, MODELS, NANO, NO_CACHE, SCRIPTS, Driven

CODE = wire.Format("regex", "(foo|bar){1,3}[0-9]{3}")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PARAMETERS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
REQUIRED = wire.ToolChoice("required")
NAMED = wire.ToolChoice("named", "get_time")


@pytest.fixture
def hermes() -> Iterator[Driven]:
    driven = Driven(HERMES)
    yield driven
    driven.engine.close()


def drawn(seed: int) -> wire.Sampling:
    return wire.Sampling(temperature=1.0, seed=seed)


# --- formats --------------------------------------------------------------------------------


def test_every_finished_answer_validates() -> None:
    nano = Driven(NANO, NO_CACHE)
    schemas = [SchemaMaker(seed, depth=2).make() for seed in range(200)]
    for number, schema in enumerate(schemas):
        limits = {"sampling": drawn(number), "max_tokens": 100}
        nano.submit(number, "x", format=wire.Format("json_schema", schema), **limits)
    nano.run(at_most=5000)
    finished = [number for number in range(200) if reason(nano, number) == "stop"]
    for number in finished:
        jsonschema.validate(
            json.loads(nano.text(number)),
            schemas[number],
            format_checker=jsonschema.FormatChecker(),
        )
    assert len(finished) > 100
    nano.engine.close()


@pytest.mark.parametrize(
    ("wanted", "shape"),
    [
        (CODE, r"(foo|bar){1,3}[0-9]{3}"),
        (wire.Format("regex", "^a/b$"), "a/b"),
        (wire.Format("lark", 'start: "<" NAME ">"\nNAME: /[a-z]{3}/'), r"<[a-z]{3}>"),
        (wire.Format("lark", 'start: "&" T // a & b\nT: /[&]\\/&/'), "&&/&"),
        (wire.Format("lark", 'root ::= ("yes" | "no") [.!]{2}'), r"(yes|no)[.!]{2}"),
        (wire.Format("json_schema", {"enum": ["red", 7]}), r'"red"|7'),
    ],
)
def test_what_is_said_has_the_format(hermes: Driven, wanted: wire.Format, shape: str) -> None:
    said = [
        hermes.ask("Say hello.", format=wanted, max_tokens=40, sampling=drawn(n)) for n in (1, 2)
    ]
    said.append(hermes.ask("Tell me a story.", format=wanted, max_tokens=40))
    assert all(re.fullmatch(shape, each) for each in said)
    assert reason(hermes) == "stop"


def test_json_is_an_object_on_one_line(hermes: Driven) -> None:
    said = hermes.ask("Reply in JSON.", format=wire.Format("json_object"))
    assert json.loads(said)["name"] == "Ada Lovelace"
    said = hermes.ask("Say hello.", format=wire.Format("json_schema", PERSON), max_tokens=80)
    jsonschema.validate(json.loads(said), PERSON)
    assert "\n" not in said


def test_an_answer_that_is_cut_says_so(hermes: Driven) -> None:
    hermes.ask("Reply in JSON.", format=wire.Format("json_object"), max_tokens=5)
    assert reason(hermes) == "length"


def test_every_choice_has_a_grammar_of_its_own(hermes: Driven) -> None:
    hermes.ask("Say hello.", format=CODE, n=3, sampling=drawn(5), max_tokens=40)
    for choice in range(3):
        said = [e for e in hermes.of(0) if isinstance(e, wire.TextDelta) and e.choice == choice]
        assert re.fullmatch(str(CODE.grammar), "".join(e.text for e in said))


def test_log_probabilities_are_those_behind_the_grammar(hermes: Driven) -> None:
    hermes.ask("Say hello.", format=wire.Format("regex", "[yz]"), logprobs=5)
    (first,) = [e for e in hermes.of(0) if isinstance(e, wire.TextDelta)]
    assert first.logprobs is not None
    (token,) = first.logprobs
    likely = {text for text, value in token.top if value > -100}
    assert likely == {"y", "z"}


def test_the_same_on_a_model_that_cannot_be_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbatchable(spec: wire.EngineSpec, report: Any) -> LoadedModel:
        return replace(load(spec, report), batchable=False)

    monkeypatch.setattr(engines.text.engine, "load", unbatchable)
    serial = Driven(HERMES)
    serial.submit(0, "Think about it.", parsers=AUTO, format=CODE, max_tokens=60)
    serial.submit(1, "Say hello.")
    serial.submit(2, "Say hello.", parsers=AUTO, tools=TOOLS, tool_choice=NAMED, max_tokens=80)
    serial.run()
    assert (trace(serial, 0), serial.text(1)) == (THOUGHT, SCRIPTS["Say hello."])
    assert re.fullmatch(str(CODE.grammar), serial.text(0))
    assert [name for name, _ in calls(serial, 2)] == ["get_time"]
    serial.engine.close()


# --- traces ---------------------------------------------------------------------------------


def test_the_grammar_begins_behind_the_trace(hermes: Driven) -> None:
    said = hermes.ask("Think about it.", parsers=AUTO, format=CODE, max_tokens=60)
    assert trace(hermes) == THOUGHT
    assert re.fullmatch(str(CODE.grammar), said)
    assert hermes.one(0, wire.Finished).usage.reasoning_tokens > 10


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_and_a_grammar(hermes: Driven, budget: int) -> None:
    limited = wire.Reasoning(budget_tokens=budget)
    said = hermes.ask(
        "Think about it.", parsers=AUTO, format=CODE, reasoning=limited, max_tokens=60
    )
    assert re.fullmatch(str(CODE.grammar), said)
    assert THOUGHT.startswith(trace(hermes))
    assert hermes.one(0, wire.Finished).usage.reasoning_tokens <= budget + 1  # and the opener


@pytest.mark.parametrize("budget", [0, 3])
def test_a_budget_and_a_forced_call(budget: int) -> None:
    """What harmony ends a trace with goes on into an answer, and here a call has to follow."""
    harmony = Driven(MODELS / "scripted-harmony")
    limited = wire.Reasoning(budget_tokens=budget)
    harmony.ask(
        "What is the weather in Paris?",
        parsers=AUTO, tools=TOOLS, tool_choice=NAMED, reasoning=limited, max_tokens=90,
    )  # fmt: skip
    assert [name for name, _ in calls(harmony)] == ["get_time"]
    assert harmony.one(0, wire.Finished).usage.reasoning_tokens < 9
    harmony.engine.close()


def test_without_thinking_there_is_no_trace(hermes: Driven) -> None:
    off = wire.Reasoning(enabled=False)
    said = hermes.ask("Think about it.", parsers=AUTO, format=CODE, reasoning=off, max_tokens=60)
    assert (trace(hermes), reason(hermes)) == ("", "stop")
    assert re.fullmatch(str(CODE.grammar), said)


def test_a_trace_does_not_end_the_answer() -> None:
    """A random model may draw anything there, an end too, and has to go on to its answer."""
    nano = Driven(NANO, NO_CACHE)
    prompt = "<|im_start|>assistant\n<think>"
    for number in range(8):
        nano.engine.submit(
            wire.Generate(
                number,
                prompt=prompt,
                parsers=wire.Parsers("hermes", "qwen3"),
                sampling=drawn(number),
                reasoning=wire.Reasoning(budget_tokens=40),
                format=CODE,
                max_tokens=200,
            )
        )
    nano.run()
    for number in range(8):
        assert re.fullmatch(str(CODE.grammar), nano.text(number))
        assert nano.one(number, wire.Finished).usage.completion_tokens > 40
    nano.engine.close()


def test_a_call_behind_a_trace(hermes: Driven) -> None:
    hermes.ask("Think then call.", parsers=AUTO, tools=TOOLS, tool_choice=REQUIRED, max_tokens=90)
    assert trace(hermes) == "I need the weather tool."
    assert calls(hermes)[0][0] == "get_weather"


# --- forced calls ---------------------------------------------------------------------------

FAMILIES = sorted(path.name for path in MODELS.glob("scripted-*"))


QUESTIONS = ("What is the weather in Paris?", "Say hello.")
CHOICES = (REQUIRED, NAMED, wire.ToolChoice("required", parallel=False))


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_forced_in_every_format(family: str) -> None:
    driven = Driven(MODELS / family, NO_CACHE)
    asked = list(product(QUESTIONS, CHOICES))
    for number, (question, choice) in enumerate(asked):
        fields = {"parsers": AUTO, "tools": TOOLS, "tool_choice": choice, "max_tokens": 120}
        driven.submit(number, question, **fields)
    driven.run()
    ended = [number for number in range(len(asked)) if reason(driven, number) != "length"]
    for number in ended:
        _, choice = asked[number]
        found = calls(driven, number)
        assert (driven.text(number), reason(driven, number)) == ("", "tool_calls")
        for name, arguments in found:
            jsonschema.validate(arguments, PARAMETERS[name])
        assert len(found) == 1 or choice is REQUIRED
        assert found[0][0] == "get_time" or choice is not NAMED
    assert len(ended) >= 3
    driven.engine.close()


def test_a_format_does_not_keep_the_model_from_its_tools(hermes: Driven) -> None:
    wanted = wire.Format("json_schema", PERSON)
    hermes.ask("What is the weather in Paris?", parsers=AUTO, tools=TOOLS, format=wanted)
    assert calls(hermes)[0][0] == "get_weather"
    said = hermes.ask("Reply in JSON.", parsers=AUTO, tools=TOOLS, format=wanted, max_tokens=90)
    jsonschema.validate(json.loads(said), PERSON)


@pytest.mark.parametrize(
    "looked",
    [
        {"type": "string", "pattern": "a(?=b)", "uniqueItems": True},
        {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 100_000_007},
    ],
)
def test_a_value_that_no_grammar_can_keep_does_not_stop_a_call(
    hermes: Driven, looked: dict[str, Any]
) -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"for": looked}}}
    tools = [{"type": "function", "function": tool}]
    hermes.ask("Say hello.", parsers=AUTO, tools=tools, tool_choice=REQUIRED, max_tokens=60)
    assert calls(hermes)[0][0] == "look"


# --- beside others --------------------------------------------------------------------------

MIX: dict[int, dict[str, Any]] = {
    0: {"question": "Count to ten."},
    1: {"question": "Say hello.", "sampling": drawn(3), "max_tokens": 30},
    2: {"question": "Reply in JSON.", "format": wire.Format("json_schema", PERSON)},
    3: {"question": "Say hello.", "format": CODE, "sampling": drawn(4)},
    4: {"question": "Say hello.", "parsers": AUTO, "tools": TOOLS, "tool_choice": NAMED},
    5: {"question": "Use emoji.", "logprobs": 2},
    6: {"question": "Think about it.", "parsers": AUTO, "format": CODE},
    7: {
        "question": "Tell me a story.",
        "sampling": wire.Sampling(temperature=0.0, presence_penalty=0.7, logit_bias={40: 2.0}),
        "max_tokens": 30,
    },
}


def told(driven: Driven, call_id: int) -> list[Any]:
    kinds = (wire.TextDelta, wire.ReasoningDelta, wire.ToolCallArguments)
    texts = [(type(e).__name__, e.text) for e in driven.of(call_id) if isinstance(e, kinds)]
    usage = driven.one(call_id, wire.Finished).usage
    return [*texts, usage.completion_tokens, reason(driven, call_id)]


def test_every_row_says_in_a_mixed_batch_what_it_says_alone() -> None:
    alone = Driven(HERMES, NO_CACHE)
    wanted = {}
    for call_id, fields in MIX.items():
        alone.submit(call_id, **{"max_tokens": 80, **fields})
        alone.run()
        wanted[call_id] = told(alone, call_id)
    together = Driven(HERMES, NO_CACHE)
    for call_id in (2, 0, 3, 1):
        together.submit(call_id, **{"max_tokens": 80, **MIX[call_id]})
    for _ in range(8):  # the rest joins a batch that is on its way
        together.engine.step()
    for call_id in (5, 6, 4, 7):
        together.submit(call_id, **{"max_tokens": 80, **MIX[call_id]})
    together.run()
    assert {call_id: told(together, call_id) for call_id in MIX} == wanted
    for driven in (alone, together):
        driven.engine.close()


def test_a_grammar_that_cannot_be_kept_ends_its_own_call_only(
    hermes: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, steps = Constraint._mask, 0

    def breaking(self: Constraint, logits: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 4:
            self.error = "the parser has grown too large"
            return logits
        return original(self, logits)

    monkeypatch.setattr(Constraint, "_mask", breaking)
    hermes.submit(0, "Reply in JSON.", format=wire.Format("json_object"))
    hermes.submit(1, "Count to ten.")
    hermes.run()
    failed = hermes.one(0, wire.Failed)
    assert failed.code == "unsupported"
    assert "the parser has grown too large; make the schema or grammar simpler" in failed.message
    assert hermes.text(1) == SCRIPTS["Count to ten."]


def test_a_tokenizer_is_prepared_when_nothing_runs(
    hermes: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    hermes.engine.idle()
    monkeypatch.setattr("engines.text.constrain.compiler.from_tokenizer", None)
    assert hermes.ask("Say hello.", format=wire.Format("regex", "ok")) == "ok"


# --- refusals -------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"uniqueItems": True}, "unsupported", "$.uniqueItems"),
    ({"properties": {"a": {"not": {}}}}, "unsupported", "$.properties.a.not"),
    ({"items": {"if": {}, "then": {}}}, "unsupported", "$.items.if"),
    ({"anyOf": [{}, {"contains": {}}]}, "unsupported", "$.anyOf[1].contains"),
    ({"dependentRequired": {"a": ["b"]}}, "unsupported", "$.dependentRequired"),
    ({"propertyNames": {"maxLength": 3}}, "unsupported", "$.propertyNames"),
    ({"unevaluatedProperties": False}, "unsupported", "$.unevaluatedProperties"),
    ({"type": "string", "format": "colour"}, "unsupported", "$.format"),
    ({"properties": {"a": {"pattern": "a(?=b)"}}}, "unsupported", "$.properties.a.pattern"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "unsupported", "$.oneOf"),
    (
        {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {}}},
        "unsupported",
        "$.allOf[1].$ref",
    ),
    ({"type": "colour"}, "unsupported", "$.type"),
    ({"items": {"multipleOf": 100_000_007}}, "unsupported", "$.items.multipleOf"),
    ({"properties": {"a": {"multipleOf": 1.23456789}}}, "unsupported", "$.properties.a.multipleOf"),
    ({"type": "integer", "multipleOf": 10**15}, "unsupported", "$.multipleOf"),
    ({"properties": {"a": {}}, "maxProperties": 1}, "unsupported", "$.maxProperties"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "code", "path"), REFUSED, ids=lambda each: str(each)[:40])
def test_a_keyword_that_cannot_be_enforced_is_named(
    hermes: Driven, schema: dict[str, Any], code: str, path: str
) -> None:
    with pytest.raises(EngineError, match=re.escape(f"because of {path} (")) as caught:
        hermes.submit(0, "Say hello.", format=wire.Format("json_schema", schema))
    assert caught.value.code == code
    assert not hermes.engine.busy


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"format": wire.Format("regex", "a(")}, "invalid_request", "unclosed group"),
        ({"format": wire.Format("lark", "start: foo")}, "invalid_request", 'unknown name: "foo"'),
        ({"format": wire.Format("lark", "root ::= (")}, "invalid_request", "grammar of the answer"),
        (
            {"format": wire.Format("lark", "root ::= foo")},
            "invalid_request",
            "Rule 'foo' not found",
        ),
        (
            {"format": wire.Format("lark", 'root ::= "a' + "\\")},
            "invalid_request",
            "cannot be used",
        ),
        (
            {"format": wire.Format("lark", "root ::= " + "(" * 5000)},
            "invalid_request",
            "nested too deeply",
        ),
        (
            {"format": wire.Format("lark", "root ::= " + "x " * 2**21)},
            "invalid_request",
            "longer than",
        ),
        ({"format": wire.Format("lark", "x" * 2**21)}, "invalid_request", "longer than"),
        (
            {"format": wire.Format("lark", 'start: %json {"\\u006dultipleOf" : 100000007}')},
            "invalid_request",
            "multipleOf",
        ),
        (
            {"format": wire.Format("lark", "start: T\nT: /(.{997})*/ & /(.{991})*/ & /(.{983})*/")},
            "invalid_request",
            "intersections",
        ),
        ({"format": wire.Format("json_schema", 7)}, "invalid_request", "object or a boolean"),
        ({"format": wire.Format("json_schema", False)}, "invalid_request", "cannot be used"),
        (
            {"tools": TOOLS, "tool_choice": wire.ToolChoice("named", "unheard_of")},
            "invalid_request",
            "no such tool",
        ),
        ({"tool_choice": REQUIRED}, "invalid_request", "no such tool"),
        (
            {"tools": TOOLS, "tool_choice": REQUIRED, "parsers": wire.Parsers(None, None)},
            "tool_choice_unsupported",
            "tool_parser is off",
        ),
        (
            {"tools": TOOLS, "tool_choice": REQUIRED, "parsers": wire.Parsers("longcat", None)},
            "tool_choice_unsupported",
            "no grammar for the format 'longcat'",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused(
    hermes: Driven, fields: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(EngineError, match=says) as caught:
        hermes.submit(0, "Say hello.", **fields)
    assert caught.value.code == code
    assert len(str(caught.value)) < 500
    assert not hermes.engine.busy


def test_the_table_of_keywords_is_what_the_compiler_refuses() -> None:
    from engines.text.constrain.keywords import UNSUPPORTED

    for keyword in sorted(UNSUPPORTED):
        value: Any = 1 if keyword.endswith("Contains") else {}
        grammar = "start: %json " + json.dumps({keyword: value})
        is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        assert is_error, keyword
        assert f'Unimplemented keys: ["{keyword}"]' in messages[0]
