"""What a client sees when: streaming of arguments, silence, stop strings, the cheap path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.parsers import reasoning, tools
from engines.parsers.events import CallArguments, CallEnd, CallStart, Event, Reasoning, Text
from engines.parsers.pipeline import CALL_HOLD_CHARACTERS, Pipeline
from tests.unit.parsers.answers import ROWS, TOOLS, by_size


def make(**given: Any) -> Pipeline:
    settings: dict[str, Any] = {
        "tool": None,
        "reasoning": None,
        "tools": TOOLS,
        "stops": (),
        "prompt_tail": "",
        "special_tokens": (),
        "thinking": None,
        "new_call_id": lambda: "call_0",
    }
    return Pipeline(**settings | given)


def feed_all(pipeline: Pipeline, pieces: list[str]) -> list[Event]:
    events = [event for piece in pieces for event in pipeline.feed(piece)]
    return events + pipeline.finish("stop")


def test_events_of_one_call_in_order() -> None:
    text = '<think>Hm.</think>Wait.\n<tool_call>{"name": "refresh", "arguments": {}}</tool_call>'
    assert feed_all(make(tool="hermes", reasoning="qwen3"), [text]) == [
        Reasoning("Hm."),
        Text("Wait."),
        CallStart(0, "call_0", "refresh"),
        CallArguments(0, "{}"),
        CallEnd(0),
    ]


@pytest.mark.parametrize(
    ("tool", "before", "after"),
    [
        ("hermes", '<tool_call>{"name": "save_note", "arguments": {"text": "', '"}}</tool_call>'),
        ("mistral", '[TOOL_CALLS]save_note[ARGS]{"text": "', '"}'),
        ("kimi_k2", '<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"text": "', '"}'),
        ("harmony", '<|channel|>commentary to=functions.f<|message|>{"text": "', '"}<|call|>'),
        ("llama", '<function=save_note>{"text": "', '"}</function>'),
    ],
)
def test_long_arguments_stream_as_they_come(tool: str, before: str, after: str) -> None:
    long = "word " * CALL_HOLD_CHARACTERS
    pipeline, seen = make(tool=tool), 0
    pipeline.feed(before)
    joined = ""
    for piece in by_size(10)(long):
        events = pipeline.feed(piece)
        seen += len(events) > 0
        joined += "".join(event.text for event in events if isinstance(event, CallArguments))
    assert len(joined) > 0.9 * len(long)
    assert seen > 100
    ended = feed_all(pipeline, [after])
    assert isinstance(ended[-1], CallEnd)
    joined += "".join(event.text for event in ended if isinstance(event, CallArguments))
    assert json.loads(joined) == {"text": long}
    assert pipeline.finish_reason("stop") == "tool_calls"


def test_long_values_stream_one_by_one() -> None:
    pipeline = make(tool="qwen3_coder")
    long = "word " * CALL_HOLD_CHARACTERS
    first = pipeline.feed(
        f"<function=save_note>\n<parameter=file>\n{long}\n</parameter>\n<parameter=text>\n"
    )
    assert [type(event) for event in first] == [CallStart, CallArguments]
    last = feed_all(pipeline, ["b\n</parameter>\n</function>"])
    assert last == [CallArguments(0, ', "text": "b"}'), CallEnd(0)]


def test_a_long_call_that_is_cut_never_ends() -> None:
    pipeline = make(tool="hermes")
    events = pipeline.feed('<tool_call>{"name": "save_note", "arguments": {"text": "' + "x" * 2000)
    events += pipeline.finish("length")
    assert [type(event) for event in events] == [CallStart, CallArguments]
    assert pipeline.finish_reason("length") == "length"


def test_a_long_call_that_breaks_never_ends_and_the_next_one_is_whole() -> None:
    pipeline = make(tool="hermes")
    events = feed_all(
        pipeline,
        [
            '<tool_call>{"name": "save_note", "arguments": {"text": "' + "x" * 2000 + '" oops',
            '}}</tool_call>\n<tool_call>{"name": "refresh"}</tool_call>',
        ],
    )
    assert [event.index for event in events if isinstance(event, CallStart)] == [0, 1]
    assert [event.index for event in events if isinstance(event, CallEnd)] == [1]
    shown = "".join(event.text for event in events if isinstance(event, Text))
    assert shown == "oops}}</tool_call>"


@pytest.mark.parametrize("tool", ["hermes", "qwen", "glm4", "mistral", "kimi_k2", "minimax_m2"])
def test_text_is_never_silent_for_long(tool: str) -> None:
    pipeline, shown = make(tool=tool, reasoning="qwen3"), ""
    text = "Tags like `<tool_call>`, `[TOOL_CALLS]` or <invoke name= are only mentioned here. " * 3
    longest = max(map(len, ["<|tool_calls_section_begin|>", "<minimax:tool_call>"]))
    for end in range(1, len(text) + 1):
        events = pipeline.feed(text[end - 1])
        shown += "".join(event.text for event in events if isinstance(event, Text))
        assert end - len(shown) <= longest + len("name=")
    assert shown + "".join(
        event.text for event in pipeline.finish("stop") if isinstance(event, Text)
    ) == (text)


def test_nothing_comes_after_a_stop_string() -> None:
    pipeline = make(tool="hermes", stops=["STOP"])
    events = pipeline.feed('a STOP b <tool_call>{"name": "refresh"}</tool_call>')
    assert events == [Text("a ")]
    assert pipeline.stopped == "STOP"
    assert pipeline.feed("more") == []
    assert pipeline.finish("length") == []
    assert pipeline.finish_reason("length") == "stop"


def test_a_stop_string_does_not_reach_over_a_call() -> None:
    pipeline = make(tool="hermes", stops=["ab"])
    events = feed_all(pipeline, ['a<tool_call>{"name": "refresh"}</tool_call>b'])
    assert [event.text for event in events if isinstance(event, Text)] == ["a", "b"]
    assert pipeline.stopped is None


def test_calls_written_before_a_stop_string_are_calls() -> None:
    pipeline = make(tool="hermes", stops=["STOP"])
    pipeline.feed('<tool_call>{"name": "refresh"}</tool_call> STOP')
    assert pipeline.finish_reason("stop") == "tool_calls"


def test_without_parsers_text_passes_as_it_is() -> None:
    pipeline = make(special_tokens=["</s>"])
    assert pipeline.feed("<tool_call> \n") == [Text("<tool_call> \n")]
    assert pipeline.feed("") == []
    assert pipeline.feed("</s>", True) == []
    assert pipeline.finish("stop") == []
    assert pipeline.finish_reason("length") == "length"


def test_a_tool_family_alone_keeps_drafts_from_running() -> None:
    text = '<think><tool_call>{"name": "refresh"}</tool_call></think>No.'
    pipeline = make(tool="hermes")
    events = feed_all(pipeline, [text])
    assert events == [Reasoning('<tool_call>{"name": "refresh"}</tool_call>'), Text("No.")]
    assert pipeline.finish_reason("stop") == "stop"


def test_ids_come_from_the_given_maker() -> None:
    ids = iter(["call_a", "call_b"])
    pipeline = make(tool="hermes", new_call_id=lambda: next(ids))
    call = '<tool_call>{"name": "refresh"}</tool_call>'
    events = feed_all(pipeline, [call, call])
    assert [event.call_id for event in events if isinstance(event, CallStart)] == [
        "call_a",
        "call_b",
    ]


def test_an_unknown_family_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no tool parser 'hermez'; known are .*hermes"):
        make(tool="hermez")
    with pytest.raises(ValueError, match="no reasoning parser"):
        make(reasoning="hermes")


def test_a_long_answer_is_not_kept() -> None:
    pipeline = make(tool="hermes", reasoning="qwen3")
    shown = [pipeline.feed("word and word. ") for _ in range(2000)]
    assert sum(len(events) for events in shown) == 2000
    assert pipeline._machine is not None
    assert len(pipeline._machine.source.text) < 10_000


@pytest.mark.parametrize(
    ("tool", "opener"),
    [
        ("qwen3_coder", "<function=save_note><parameter=text>"),
        ("pythonic", '<|python_start|>[save_note(text="'),
        ("glm4", "<tool_call>save_note<arg_key>text</arg_key><arg_value>"),
        ("hermes", '<tool_call>{"name": "save_note", "arguments": {"text": ['),
    ],
)
def test_an_opening_tag_repeated_without_end_is_text(tool: str, opener: str) -> None:
    repeated = "so " + opener * 1000
    events = feed_all(make(tool=tool, call_hold=10**6), [repeated])
    assert all(isinstance(event, Text) for event in events)
    assert "".join(event.text for event in events if isinstance(event, Text)) == repeated


def test_every_family_has_rows() -> None:
    tried = {row.tool for row in ROWS}
    assert all(tried & set(family.names) for family in tools.FORMATS)
    tried = {row.reasoning for row in ROWS}
    assert all(tried & set(family.names) for family in reasoning.FORMATS)
