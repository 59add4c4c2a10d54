"""Families by name, by alias, and by what a model shows."""

from __future__ import annotations

import itertools
import typing

import pytest

from engines.parsers import reasoning, registry, tools, upstream
from gateway.registry.schema import ReasoningParser, ToolParser

CHATML = "{{ '<|im_start|>assistant\n' }}"


def test_every_name_of_the_registry_document_is_a_family() -> None:
    names = registry.names()
    assert set(typing.get_args(ToolParser)) - {"auto", *upstream.NAMES} <= names.tools
    assert set(upstream.NAMES) <= set(typing.get_args(ToolParser))
    assert set(typing.get_args(ReasoningParser)) - {"auto"} <= names.reasoning


def test_names_are_unique() -> None:
    for formats in (tools.FORMATS, reasoning.FORMATS):
        all_names = [name for each in formats for name in each.names]
        assert len(all_names) == len(set(all_names))


def test_no_marker_begins_another_one() -> None:
    for tool, trace in itertools.product(tools.FORMATS, reasoning.FORMATS):
        markers = {*tool.openers, *(tag for pair in trace.tags for tag in pair)}
        for one, other in itertools.permutations(markers, 2):
            assert not other.startswith(one), (tool.names, trace.names, one, other)


@pytest.mark.parametrize(
    ("template", "tool", "trace"),
    [
        ("{{ '<tool_call>\\n{\"name\": ' }} <think>", "hermes", "qwen3"),
        ("<tool_call>\n<function=example>\n<parameter=key>", "qwen3_coder", None),
        ("[INST] [TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("<|start_header_id|>ipython<|end_header_id|> <|python_tag|>", "llama", None),
        ("<|start_header_id|> '{\"name\": x, \"parameters\": y}'", "llama", None),
        ("<|python_start|>", "pythonic", None),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c> <\uff5cAssistant\uff5c> </think>",
         "deepseek_v3", "deepseek_r1"),
        ("<|tool_calls_section_begin|>", "kimi_k2", None),
        ("[gMASK]<sop> <tool_call>{{ name }}<arg_key> <think>", "glm4", "glm4"),
        ("<minimax:tool_call> <think>", "minimax_m2", "minimax_m2"),
        ("<|channel>thought <channel|> <|tool_call>call: <tool_call|>", "gemma4", "gemma4"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony", "harmony"),
        ("<|from|>assistant\n<|recipient|>all\n<|content|>", "functionary", None),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n>>>all", "functionary_v3_2", None),
        ("<|start_of_role|>assistant<|end_of_role|> <tool_call>", "granite", None),
        ("<TOOLCALL>", "nemotron", None),
        ("<seed:think>", None, "think"),
        (CHATML, None, None),
    ],
)  # fmt: skip
def test_inferred_from_the_template(template: str, tool: str | None, trace: str | None) -> None:
    assert registry.infer(template, []) == (tool, trace)


@pytest.mark.parametrize(
    ("vocabulary", "tool", "trace"),
    [
        (["<think>", "</think>", "<tool_call>", "</tool_call>"], "hermes", "qwen3"),
        (["<|python_tag|>", "<|eom_id|>"], "llama", None),
        (["[THINK]", "[/THINK]", "[TOOL_CALLS]"], "mistral", "mistral"),
        (["<think>"], None, None),
    ],
)
def test_inferred_from_the_vocabulary(
    vocabulary: list[str], tool: str | None, trace: str | None
) -> None:
    assert registry.infer(CHATML, vocabulary) == (tool, trace)


def test_the_template_goes_before_the_vocabulary() -> None:
    assert registry.infer("<tool_call>", ["<|python_tag|>", "<|eom_id|>"])[0] == "hermes"
