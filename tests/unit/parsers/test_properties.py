"""What holds for every family: cuts do not matter, foreign markers are text, nothing is lost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.parsers import reasoning, tools
from engines.parsers.formats import ReasoningFormat, ToolFormat
from engines.parsers.pipeline import CALL_HOLD_CHARACTERS
from tests.unit.parsers.answers import Row, answer_to, by_size, whole

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
TOOL_NAMES = [each.names[0] for each in tools.FORMATS]
TRACE_NAMES = [each.names[0] for each in reasoning.FORMATS]

FRAGMENTS = (
    '{"name": "refresh", "arguments": {}}', '{"name": "local_time", "arguments": {"zone": "U"}}',
    '[{"name": "refresh", "parameters": {}}]', "refresh", "[refresh()]", "call:refresh{", "{", "}",
    "[", "]", '"', "\\", ":", ",", "\n", " ", "x", "<", ">", "`", "{}", "[ARGS]",
    "functions.refresh:0",
    "<parameter=zone>", "</parameter>", '<parameter name="zone">', "</invoke>", '"refresh">',
    "refresh>",
    "<arg_key>zone</arg_key><arg_value>", "</arg_value>", "assistant", "all\n", "json", "analysis",
    "to=functions.refresh", '<|"|>', "<|tool_call_argument_begin|>", "<|content|>",
)  # fmt: skip


def markers(tool: ToolFormat | None, trace: ReasoningFormat | None) -> set[str]:
    """Every marker that a family may act on."""
    own = {*tool.openers, *tool.closers} if tool else set()
    own |= {tag for pair in trace.tags for tag in pair} if trace else set()
    if (tool and tool.channels) or (trace and trace.channels):
        own |= set(HARMONY)
    return own


EVERY_MARKER = sorted(
    set().union(*(markers(each, None) for each in tools.FORMATS))
    | set().union(*(markers(None, each) for each in reasoning.FORMATS))
)


def is_foreign(marker: str, own: set[str]) -> bool:
    return not any(mine in marker or marker in mine for mine in own)


def mention_all(own: set[str]) -> str:
    foreign = [marker for marker in EVERY_MARKER if is_foreign(marker, own)]
    return "Models write " + ", or ".join(f"{it} and {it}," for it in foreign) + " and so on."


@pytest.mark.parametrize("tool", tools.FORMATS, ids=TOOL_NAMES)
def test_markers_of_other_tool_families_are_text(tool: ToolFormat) -> None:
    trace = next(each for each in reasoning.FORMATS if each.names[0] == "qwen3")
    text = mention_all(markers(tool, trace))
    row = Row("any", "any", text, tool=tool.names[0], reasoning="qwen3")
    for cut in (whole, by_size(1), by_size(7)):
        assert answer_to(row, cut).content == text


@pytest.mark.parametrize("trace", reasoning.FORMATS, ids=TRACE_NAMES)
def test_markers_of_other_reasoning_families_are_text(trace: ReasoningFormat) -> None:
    text = mention_all(markers(None, trace))
    row = Row("any", "any", text, reasoning=trace.names[0], thinking=False)
    for cut in (whole, by_size(1), by_size(7)):
        assert answer_to(row, cut).content == text


def texts(own: set[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([*sorted(own) * 3, *FRAGMENTS]), max_size=14).map("".join)


@pytest.mark.parametrize("tool", tools.FORMATS, ids=TOOL_NAMES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_text_at_any_cuts(tool: ToolFormat, data: st.DataObject) -> None:
    trace = data.draw(st.sampled_from(reasoning.FORMATS))
    row = Row(
        "any",
        "any",
        data.draw(texts(markers(tool, trace))),
        tool=tool.names[0],
        reasoning=trace.names[0],
        prompt=data.draw(st.sampled_from(["", *tool.prompt_openers, "<think>\n"])),
        finish=data.draw(st.sampled_from(["stop", "length"])),
    )
    hold = data.draw(st.sampled_from([0, CALL_HOLD_CHARACTERS]))
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    answer = answer_to(row, whole, hold)
    assert answer_to(row, by_size(1), hold) == answer
    assert answer_to(row, by_size(*sizes), hold) == answer
    for call in answer.calls:
        if call.complete:
            assert isinstance(json.loads(call.arguments), dict)
    if hold:
        assert all(call.complete for call in answer.calls)
    flagged = replace(row, tokens=tuple(markers(tool, trace)) or ("</s>",))
    answer = answer_to(flagged, whole, hold)
    assert answer_to(flagged, by_size(*sizes), hold) == answer


@pytest.mark.parametrize("tool", [None, *TOOL_NAMES])
@given(text=st.text(alphabet="ab {}[]\"'`\n<>|:,", max_size=60))
@settings(max_examples=15, deadline=None)
def test_text_without_markers_is_shown_as_it_is(tool: str | None, text: str) -> None:
    row = Row("any", "any", text, tool=tool, reasoning="qwen3" if tool else None)
    answer = answer_to(row, by_size(2))
    assert (answer.content, answer.trace, answer.calls) == (text, "", [])
