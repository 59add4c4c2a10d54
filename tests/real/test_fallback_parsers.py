"""Which parser a model gets that shows a family only mlx-lm knows, and what operators can name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engines import wire
from engines.answer import Answer
from engines.text.model import build_tokenizer
from engines.text.parsing import Parsing
from engines.text.vocabulary import Vocabulary
from tests.fixtures.train.families import families

HERMES = families()["hermes"].folder
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "refresh", "parameters": {"type": "object"}}}
]
MESSAGES = [{"role": "user", "content": "Refresh it."}]

SHOWN = {
    "longcat": ("<longcat_tool_call>", "<longcat_tool_call>refresh<longcat_arg_key>"),
    "function_gemma": (
        "<start_function_call>",
        "<start_function_call>call:refresh{}<end_function_call>",
    ),
    "muse_spark": (
        "<atem:function_calls>",
        '<atem:function_calls><atem:invoke name="refresh"></atem:invoke></atem:function_calls>',
    ),
    "minicpm5": (
        '<function name="x"> <param name="y">',
        '<function name="refresh"></function>',
    ),
}
"""What a template shows of a family, and a call as its models write it."""


def tokenizer(folder: Path, shown: str) -> Any:
    """The hermes model's, with a template that shows nothing but this."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(HERMES / name, folder / name)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    template = "{{- messages[0].content }}{# " + shown + " #}"
    file.write_text(json.dumps({**settings, "chat_template": template}), encoding="utf-8")
    return build_tokenizer(folder, {}, False)


def answer(parsing: Parsing, text: str, tool: str | None) -> list[wire.Delta | wire.ChoiceFinished]:
    request = wire.Generate(0, MESSAGES, tools=TOOLS, parsers=wire.Parsers(tool))
    (pipeline,) = parsing.pipelines(request, [])
    one = Answer(0, 0, pipeline)
    deltas: list[wire.Delta | wire.ChoiceFinished] = []
    for character in text:
        deltas += one.add(character, False)
    return [*deltas, *one.finish("stop")]


def called(events: list[wire.Delta | wire.ChoiceFinished]) -> list[str]:
    return [event.name for event in events if isinstance(event, wire.ToolCallStart)]


@pytest.mark.parametrize("family", SHOWN)
def test_a_template_that_only_mlx_lm_knows(tmp_path: Path, family: str) -> None:
    shown, text = SHOWN[family]
    made = tokenizer(tmp_path, shown)
    parsing = Parsing(made, Vocabulary(made))
    assert called(answer(parsing, f"Yes. {text}", "auto")) == ["refresh"]
    request = wire.Generate(0, MESSAGES, tools=TOOLS)
    assert parsing.parsers(request).tool == family


def test_a_fallback_by_its_name(tmp_path: Path) -> None:
    """Whatever the template shows; and one of ours goes before it where that is named."""
    made = tokenizer(tmp_path, "<tool_call> tool_call.name")
    parsing = Parsing(made, Vocabulary(made))
    for family, (_, text) in SHOWN.items():
        assert called(answer(parsing, text, family)) == ["refresh"]
        assert called(answer(parsing, text, "auto")) == []
    call = '<tool_call>{"name": "refresh"}</tool_call>'
    assert called(answer(parsing, call, "auto")) == ["refresh"]


def test_an_unparseable_call_is_text(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, "<longcat_tool_call>")
    text = "<longcat_tool_call>?</longcat_tool_call>"
    events = answer(Parsing(made, Vocabulary(made)), text, "auto")
    assert "".join(event.text for event in events if isinstance(event, wire.TextDelta)) == text
    assert called(events) == []
