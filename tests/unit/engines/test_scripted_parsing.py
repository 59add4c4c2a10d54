"""Parsers, choices, log-probabilities and questions of the scripted engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import wire
from engines.base import EngineError
from tests.unit.engines.scripted_bench import Bench

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_named_parsers_take_its_text_apart() -> None:
    bench = Bench()
    parsers = wire.Parsers("hermes", "qwen3")
    bench.script("<think>", "hm ", "hm</think>", CALL, parsers=parsers, tools=TOOLS)
    bench.run()
    names = bench.names()
    assert names[:2] == ["Started", "ReasoningDelta"]
    assert names[-4:] == ["ToolCallStart", "ToolCallArguments", "ChoiceFinished", "Finished"]
    assert bench.texts() == []
    assert bench.ends() == [("tool_calls", None)]
    assert bench.usage().reasoning_tokens in (2, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS},  # auto: a scripted model shows no format
        {"parsers": wire.Parsers("hermes", None)},
        {
            "parsers": wire.Parsers("hermes", None),
            "tools": TOOLS,
            "tool_choice": wire.ToolChoice("none"),
        },
    ],
    ids=["auto", "no tools", "none"],
)
def test_without_parser_or_tools_a_call_is_text(fields: dict[str, Any]) -> None:
    bench = Bench()
    bench.script(CALL, **fields)
    assert bench.run().texts() == [CALL]
    assert bench.ends() == [("stop", None)]


def test_without_parallel_calls_the_first_is_the_end() -> None:
    bench = Bench()
    choice = wire.ToolChoice(parallel=False)
    parsers = wire.Parsers("hermes", None)
    bench.script(CALL, CALL, "more", parsers=parsers, tools=TOOLS, tool_choice=choice)
    bench.run()
    assert bench.names().count("ToolCallStart") == 1
    assert bench.ends() == [("tool_calls", None)]


def test_a_token_is_a_marker_where_its_spelling_is_text() -> None:
    bench = Bench()
    parsers = wire.Parsers(None, "qwen3")
    steps = [{"token": "<think>"}, "a </think> b", {"token": "</think>"}, "c"]
    bench.script(*steps, parsers=parsers)
    bench.run()
    said = [event for event in bench.events if isinstance(event, wire.ReasoningDelta)]
    assert "".join(event.text for event in said) == "a </think> b"
    assert bench.texts() == ["c"]


def test_the_end_of_the_prompt_can_open_a_trace() -> None:
    bench = Bench()
    given = {"script": ["hm</think>", "yes"], "prompt_tail": "<think>\n"}
    bench.submit(json.dumps(given), parsers=wire.Parsers(None, "qwen3"))
    bench.run()
    assert wire.ReasoningDelta(1, 0, "hm") in bench.events
    assert bench.texts() == ["yes"]
    with pytest.raises(EngineError, match="prompt_tail"):
        bench.submit(json.dumps({"script": [], "prompt_tail": 1}), call_id=2)


def test_choices_get_the_same_script() -> None:
    bench = Bench()
    bench.script("one ", "two", n=3)
    bench.run()
    for number in range(3):
        deltas = [e for e in bench.events if isinstance(e, wire.TextDelta) and e.choice == number]
        assert [delta.text for delta in deltas] == ["one ", "two"]
    ends = [e.choice for e in bench.events if isinstance(e, wire.ChoiceFinished)]
    assert ends == [0, 1, 2]
    assert bench.usage() == wire.Usage(bench.usage().prompt_tokens, 6)


def test_logprobs_are_made_up_and_always_the_same() -> None:
    bench = Bench()
    bench.script("one two ", "END", "ING", logprobs=2, stop=("ENDED",))
    bench.run()
    deltas = [event for event in bench.events if isinstance(event, wire.TextDelta)]
    tokens = [each for delta in deltas for each in delta.logprobs or ()]
    assert [each.token for each in tokens] == ["one ", "two ", "END", "ING"]
    assert tokens[0] == wire.TokenLogprob("one ", -0.1, (("one ", -0.1), ("other1", -1.1)))
    bench.script("x", call_id=2)
    bench.run()
    assert bench.events[-3] == wire.TextDelta(2, 0, "x")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tool_choice": wire.ToolChoice("required"), "tools": TOOLS}, "tool_choice_unsupported"),
        ({"format": wire.Format("json_object")}, "unsupported"),
    ],
)
def test_what_a_script_cannot_promise_is_refused(fields: dict[str, Any], code: str) -> None:
    bench = Bench()
    with pytest.raises(EngineError) as caught:
        bench.submit(**fields)
    assert caught.value.code == code
    assert not bench.engine.busy


def test_a_prompt_can_be_text_or_tokens_and_a_script() -> None:
    bench = Bench(deltas="default")
    script = '{"script": ["told"]}'
    bench.engine.submit(wire.Generate(1, prompt="three plain words"))
    bench.engine.submit(wire.Generate(2, prompt=script))
    cut = bench.engine.answer(wire.Tokenize(9, "", script))
    assert isinstance(cut, wire.Tokenized)
    bench.engine.submit(wire.Generate(3, token_ids=cut.token_ids))
    bench.run()
    assert [bench.texts(call_id) for call_id in (1, 2, 3)] == [["default"], ["told"], ["told"]]
    started = [e.prompt_tokens for e in bench.events if isinstance(e, wire.Started)]
    assert started == [3, 2, 2]
    with pytest.raises(EngineError, match="unknown"):
        bench.engine.submit(wire.Generate(4, token_ids=[5]))


def test_questions_are_answered_by_words() -> None:
    engine = Bench(context_length=50).engine
    messages = [{"role": "user", "content": "a b c"}]
    assert engine.answer(wire.CountTokens(1, "", messages)) == wire.Counted(1, 3)
    cut = engine.answer(wire.Tokenize(2, "", "a b"))
    assert isinstance(cut, wire.Tokenized)
    assert cut.context_length == 50
    assert engine.answer(wire.Detokenize(3, "", cut.token_ids)) == wire.Detokenized(3, "a b")
