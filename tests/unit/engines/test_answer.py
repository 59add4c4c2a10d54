"""Pieces of text to wire deltas: order, ends, the count of a trace, log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from engines import wire
from engines.answer import Answer, Unshown, make_pipeline, tools_offered
from engines.base import EngineError, check_request

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
BOTH = wire.Parsers("hermes", "qwen3")
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def answer(parsers: wire.Parsers = BOTH, **fields: Any) -> Answer:
    parallel = fields.pop("parallel", True)
    logprobs = fields.pop("logprobs", False)
    request = wire.Generate(7, [], **{"tools": TOOLS, **fields})
    pipeline = make_pipeline(request, parsers)
    return Answer(7, 2, pipeline, parallel=parallel, logprobs=logprobs)


def told(of: Answer, *pieces: str, reason: str = "stop") -> list[Any]:
    events: list[Any] = []
    for piece in pieces:
        events += of.add(piece)
    return [*events, *of.finish("length" if reason == "length" else "stop")]


def test_without_a_need_there_is_no_pipeline() -> None:
    request = wire.Generate(1, stop=("",), parsers=wire.Parsers("hermes"))
    assert make_pipeline(request, wire.Parsers("hermes", None)) is None  # no tools to call
    plain = Answer(7, 2, None)
    assert list(plain.add("a")) == [wire.TextDelta(7, 2, "a")]
    assert list(plain.add("")) == list(plain.add("<|end|>", True)) == []
    assert plain.finish("length") == [wire.ChoiceFinished(7, 2, "length")]


def test_trace_text_and_calls_in_order() -> None:
    events = told(answer(), "<think>hm</think>", "so: ", CALL)
    assert events[0] == wire.ReasoningDelta(7, 2, "hm")
    assert events[1] == wire.TextDelta(7, 2, "so:")
    start, arguments, end = events[2:]
    assert (start.index, start.name, start.choice) == (0, "f", 2)
    assert start.call_id.startswith("call_")
    assert len(start.call_id) == len("call_") + 24
    assert arguments == wire.ToolCallArguments(7, 2, 0, "{}")
    assert end == wire.ChoiceFinished(7, 2, "tool_calls")


def test_without_parallel_calls_it_is_over_behind_the_first() -> None:
    choice = answer(parallel=False)
    deltas = choice.add(f"{CALL}\n{CALL} and more")
    assert [type(delta) for delta in deltas] == [wire.ToolCallStart, wire.ToolCallArguments]
    assert choice.over
    assert choice.finish("length") == [wire.ChoiceFinished(7, 2, "tool_calls")]


def test_a_stop_string_is_the_end() -> None:
    choice = answer(stop=("END",))
    assert list(choice.add("a EN")) == [wire.TextDelta(7, 2, "a ")]
    assert list(choice.add("D b")) == []
    assert choice.over
    assert choice.finish("length") == [wire.ChoiceFinished(7, 2, "stop", "END")]


def test_text_held_back_is_told_at_the_end() -> None:
    assert told(answer(stop=("END",)), "a EN", reason="length")[-2:] == [
        wire.TextDelta(7, 2, "EN"),
        wire.ChoiceFinished(7, 2, "length"),
    ]


def test_reasoning_tokens() -> None:
    choice = answer()
    told(choice, "<think>", "one ", "two ", "three", "</think>", "four", " five")
    assert choice.reasoning_tokens in (3, 4)  # the opening tag may count
    none = answer()
    told(none, "one ", "two")
    assert none.reasoning_tokens == 0


def test_tools_are_offered_unless_none_may_be_called() -> None:
    assert tools_offered(wire.Generate(1, tools=TOOLS))
    assert not tools_offered(wire.Generate(1, tools=TOOLS, tool_choice=wire.ToolChoice("none")))
    assert not tools_offered(wire.Generate(1))
    silent = answer(tool_choice=wire.ToolChoice("none"))
    assert told(silent, CALL)[-1].reason == "stop"


def test_unknown_parsers_are_refused() -> None:
    with pytest.raises(EngineError, match="nobody") as caught:
        answer(wire.Parsers(None, "nobody"))
    assert caught.value.code == "invalid_request"


def test_refusals_name_what_is_asked() -> None:
    with pytest.raises(EngineError, match="'g'"):
        check_request(wire.Generate(1, tool_choice=wire.ToolChoice("named", "g")))
    with pytest.raises(EngineError, match="'regex'"):
        check_request(wire.Generate(1, format=wire.Format("regex", "a+")))
    check_request(wire.Generate(1, tools=TOOLS, tool_choice=wire.ToolChoice("none")))


# --- log-probabilities --------------------------------------------------------------------------


def logprob(token: str) -> wire.TokenLogprob:
    return wire.TokenLogprob(token, -1.0)


PLAIN = wire.Parsers(None, None)


def fed(choice: Answer, *tokens: str) -> list[tuple[str, list[str]]]:
    events: list[Any] = []
    for token in tokens:
        events += choice.add(token, logprobs=[logprob(token)])
    events += choice.finish("stop")
    return [
        (event.text, [each.token for each in event.logprobs or ()])
        for event in events
        if isinstance(event, wire.TextDelta)
    ]


@pytest.mark.parametrize(
    ("tokens", "fields", "expected"),
    [
        (["a", "", "b"], {}, [("a", ["a"]), ("b", ["", "b"])]),
        (
            ["a ", "EN", "ERGY"],
            {"parsers": PLAIN, "stop": ("END",)},
            [("a ", ["a "]), ("ENERGY", ["EN", "ERGY"])],
        ),
        (
            ["a ", "xEN", "D"],
            {"parsers": PLAIN, "stop": ("END",)},
            [("a ", ["a "]), ("x", ["xEN"])],
        ),
        (["a ", "b"], {}, [("a", ["a "]), (" b", ["b"])]),
        (["<think>", "b b", "</think>", "\n\n", "b"], {}, [("b", ["b"])]),
        (["b", "\n", CALL[:20], CALL[20:]], {}, [("b", ["b"])]),
        (["b ", CALL, "\n", "b"], {}, [("b", ["b "]), (" b", ["b"])]),
    ],
)
def test_every_logprob_is_with_its_text(
    tokens: list[str], fields: dict[str, Any], expected: list[tuple[str, list[str]]]
) -> None:
    assert fed(answer(logprobs=True, **fields), *tokens) == expected


def test_a_token_shown_in_parts_is_told_once() -> None:
    unshown = Unshown()
    unshown.add("abc", [logprob("abc")])
    unshown.add("d", [logprob("d")])
    assert unshown.take("ab") == (logprob("abc"),)
    assert unshown.take("cd") == (logprob("d"),)
    assert unshown.take("more") == ()


def test_text_that_cannot_be_found_takes_all_there_is() -> None:
    unshown = Unshown()
    unshown.add("a", [logprob("a")])
    assert unshown.take(" other ") == (logprob("a"),)
