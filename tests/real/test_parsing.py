"""A real model's calls and traces on their way through the text engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engines import wire
from engines.base import EngineError
from tests.real.test_text_engine import HERMES, SCRIPTS, Driven

AUTO = wire.Parsers()
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells about {key}.",
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}},
        },
    }
    for name, key in (("get_weather", "city"), ("get_time", "tz"))
]
WEATHER = {"city": "Paris", "unit": "celsius"}
THOUGHT = "The user wants me to think. 2 + 2 = 4."


@pytest.fixture
def hermes() -> Iterator[Driven]:
    driven = Driven(HERMES)
    yield driven
    driven.engine.close()


def calls(driven: Driven, call_id: int = 0) -> list[tuple[str, Any]]:
    starts = [e for e in driven.of(call_id) if isinstance(e, wire.ToolCallStart)]
    pieces = [e for e in driven.of(call_id) if isinstance(e, wire.ToolCallArguments)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert len({start.call_id for start in starts}) == len(starts)
    return [
        (start.name, json.loads("".join(p.text for p in pieces if p.index == start.index)))
        for start in starts
    ]


def trace(driven: Driven, call_id: int = 0) -> str:
    return "".join(e.text for e in driven.of(call_id) if isinstance(e, wire.ReasoningDelta))


def reason(driven: Driven, call_id: int = 0) -> str:
    return str(driven.one(call_id, wire.ChoiceFinished).reason)


def test_a_call_is_a_call_and_no_text(hermes: Driven) -> None:
    assert hermes.ask("What is the weather in Paris?", parsers=AUTO, tools=TOOLS) == ""
    assert calls(hermes) == [("get_weather", WEATHER)]
    assert reason(hermes) == "tool_calls"


def test_text_and_two_calls_in_their_order(hermes: Driven) -> None:
    text = hermes.ask("Weather and time in Paris?", parsers=AUTO, tools=TOOLS)
    assert text == "I will check both."
    assert calls(hermes) == [("get_weather", WEATHER), ("get_time", {"tz": "Europe/Paris"})]
    kinds = [type(event) for event in hermes.of(0)]
    assert kinds.index(wire.TextDelta) < kinds.index(wire.ToolCallStart)


def test_without_parallel_calls_the_row_stops_behind_the_first(hermes: Driven) -> None:
    choice = wire.ToolChoice(parallel=False)
    hermes.ask("Weather and time in Paris?", parsers=AUTO, tools=TOOLS, tool_choice=choice)
    assert calls(hermes) == [("get_weather", WEATHER)]
    assert reason(hermes) == "tool_calls"
    one = hermes.one(0, wire.Finished).usage.completion_tokens
    hermes.ask("Weather and time in Paris?", parsers=AUTO, tools=TOOLS)
    assert one < hermes.one(0, wire.Finished).usage.completion_tokens
    assert hermes.engine.memory().kv_bytes == 0


@pytest.mark.parametrize(
    "fields", [{}, {"tools": TOOLS, "tool_choice": wire.ToolChoice("none")}], ids=["no", "none"]
)
def test_without_tools_there_are_no_calls(hermes: Driven, fields: dict[str, Any]) -> None:
    question = "What is the weather in Paris?"
    assert hermes.ask(question, parsers=AUTO, **fields) == SCRIPTS[question]
    assert (calls(hermes), reason(hermes)) == ([], "stop")
    plain = hermes.one(0, wire.Started).prompt_tokens
    hermes.ask(question, parsers=AUTO, tools=TOOLS)
    assert hermes.one(0, wire.Started).prompt_tokens > plain


def test_a_call_that_is_none_comes_back_as_text(hermes: Driven) -> None:
    question = "Broken tool call."
    assert hermes.ask(question, parsers=AUTO, tools=TOOLS) == SCRIPTS[question]
    assert (calls(hermes), reason(hermes)) == ([], "stop")


def test_a_cut_call_is_not_reported(hermes: Driven) -> None:
    hermes.ask("What is the weather in Paris?", parsers=AUTO, tools=TOOLS, max_tokens=6)
    assert (calls(hermes), reason(hermes)) == ([], "length")


def test_a_trace_is_apart_from_the_answer(hermes: Driven) -> None:
    assert hermes.ask("Think about it.", parsers=AUTO) == "The answer is 4."
    assert trace(hermes) == THOUGHT
    usage = hermes.one(0, wire.Finished).usage
    assert 10 < usage.reasoning_tokens < usage.completion_tokens
    hermes.ask("Say hello.", parsers=AUTO)
    assert hermes.one(0, wire.Finished).usage.reasoning_tokens == 0


def test_a_trace_and_then_a_call(hermes: Driven) -> None:
    assert hermes.ask("Think then call.", parsers=AUTO, tools=TOOLS) == ""
    assert trace(hermes) == "I need the weather tool."
    assert calls(hermes) == [("get_weather", WEATHER)]


def test_parsers_by_name(hermes: Driven) -> None:
    hermes.ask("Think then call.", parsers=wire.Parsers("qwen", "think"), tools=TOOLS)
    assert calls(hermes) == [("get_weather", WEATHER)]
    with pytest.raises(EngineError, match="no tool parser 'unheard_of'") as caught:
        hermes.submit(0, "Say hello.", parsers=wire.Parsers("unheard_of"), tools=TOOLS)
    assert caught.value.code == "invalid_request"


def test_stop_strings_act_on_the_answer_alone(hermes: Driven) -> None:
    assert hermes.ask("Think about it.", parsers=AUTO, stop=("4",)) == "The answer is "
    assert trace(hermes) == THOUGHT
    assert hermes.one(0, wire.ChoiceFinished).stop_sequence == "4"


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_ends_the_trace(hermes: Driven, budget: int) -> None:
    limited = wire.Reasoning(budget_tokens=budget)
    hermes.ask("Think about it.", parsers=AUTO, reasoning=limited, max_tokens=budget + 8)
    assert hermes.one(0, wire.Finished).usage.reasoning_tokens <= budget + 1  # and the opener
    assert THOUGHT.startswith(trace(hermes))
    assert len(trace(hermes)) < len(THOUGHT)


def test_a_budget_that_is_not_used_up_changes_nothing(hermes: Driven) -> None:
    ample = wire.Reasoning(budget_tokens=1000)
    assert hermes.ask("Think about it.", parsers=AUTO, reasoning=ample) == "The answer is 4."
    assert trace(hermes) == THOUGHT


def test_only_the_row_with_a_budget_is_held_to_it(hermes: Driven) -> None:
    budget = wire.Reasoning(budget_tokens=3)
    hermes.submit(0, "Think about it.", parsers=AUTO)
    hermes.submit(1, "Think about it.", parsers=AUTO, reasoning=budget, max_tokens=12)
    hermes.submit(2, "Say hello.", parsers=AUTO, reasoning=budget)
    hermes.run()
    assert (trace(hermes, 0), hermes.text(0)) == (THOUGHT, "The answer is 4.")
    assert len(trace(hermes, 1)) < len(THOUGHT)
    assert hermes.text(2) == SCRIPTS["Say hello."]


def test_the_template_is_told_whether_to_think(hermes: Driven) -> None:
    """What the template makes of it is its own; here it is asked what it was given."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    given: list[dict[str, Any]] = []
    original = TokenizerWrapper.apply_chat_template

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        given.append(kwargs)
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenizerWrapper, "apply_chat_template", recorded)
        thinking = wire.Reasoning(enabled=False, effort="low")
        hermes.submit(0, "Say hello.", reasoning=thinking)
        hermes.submit(
            1, "Say hello.", reasoning=thinking, template_kwargs={"enable_thinking": True}
        )
        hermes.submit(2, "Say hello.")
    hermes.run()
    told = [(kwargs.get("enable_thinking"), kwargs.get("reasoning_effort")) for kwargs in given]
    assert told == [(False, "low"), (True, "low"), (None, None)]


def test_plain_prompts_get_plain_text(hermes: Driven) -> None:
    chat = "<|im_start|>user\nThink about it.<|im_end|>\n<|im_start|>assistant\n"
    hermes.engine.submit(wire.Generate(0, prompt=chat, sampling=wire.Sampling(0.0)))
    hermes.run()
    assert hermes.text(0) == SCRIPTS["Think about it."]
    named = wire.Generate(
        1, prompt=chat, sampling=wire.Sampling(0.0), parsers=wire.Parsers(None, "qwen3")
    )
    hermes.engine.submit(named)
    hermes.run()
    assert (trace(hermes, 1), hermes.text(1)) == (THOUGHT, "The answer is 4.")


def test_what_the_parser_takes_apart_renders_again(hermes: Driven) -> None:
    """A conversation with a call and its result, as a client sends it back."""
    hermes.ask("What is the weather in Paris?", parsers=AUTO, tools=TOOLS)
    ((name, arguments),) = calls(hermes)
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "It is 18 degrees"},
    ]
    request = wire.Generate(1, history, wire.Sampling(0.0), tools=TOOLS)
    hermes.engine.submit(request)
    hermes.run()
    assert hermes.text(1) == SCRIPTS["It is 18 degrees"]
    assert reason(hermes, 1) == "stop"
