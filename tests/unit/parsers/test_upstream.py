"""mlx-lm's parsers as a fallback: what they read are calls, and what they refuse is text."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx_lm.tool_parsers
import pytest
import yaml

from engines import wire
from engines.answer import make_pipeline
from engines.parsers import registry, upstream
from engines.parsers.events import CallStart
from engines.parsers.upstream import upstream_format
from engines.text.upstream import inferred, named
from tests.unit.parsers.answers import TOOLS, Row, answer_to, as_marked, by_size, whole
from tests.unit.parsers.test_fixtures import expect

CALLS = Path(__file__).parents[2] / "fixtures" / "upstream" / "calls.yaml"
OURS = {
    "gemma4": "gemma4",
    "glm47": "glm4",
    "json_tools": "hermes",
    "kimi_k2": "kimi_k2",
    "laguna": "poolside_v1",
    "minimax_m2": "minimax_m2",
    "mistral": "mistral",
    "pythonic": "pythonic",
    "qwen3_coder": "qwen3_coder",
}
"""mlx-lm's modules for families that we have a parser of our own for."""


def _rows() -> Iterator[Row]:
    document: dict[str, Any] = yaml.safe_load(CALLS.read_text(encoding="utf-8"))
    for family, rows in document.items():
        for given in rows:
            calls = [(name, arguments) for name, arguments in given.pop("calls", [])]
            yield Row(family=family, tool=named(family), calls=calls, **given)


@pytest.mark.parametrize(
    "cut", [whole, as_marked, by_size(1), by_size(7), by_size(2, 11, 3)], ids=lambda cut: ""
)
@pytest.mark.parametrize("row", list(_rows()), ids=str)
def test_row(row: Row, cut: Callable[[str], list[str]]) -> None:
    expect(row, answer_to(row, cut))


def test_every_module_of_mlx_lm_is_ours_or_a_fallback() -> None:
    modules = {module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)}
    assert modules == {*OURS, *upstream.NAMES}
    assert set(OURS.values()) <= registry.names().tools
    assert not set(upstream.NAMES) & registry.names().tools


def test_a_family_without_an_end_marker_ends_with_the_text() -> None:
    """As mlx-lm's parser for Mistral is written."""
    found = inferred(Shown("mistral"))
    text = 'Yes.[TOOL_CALLS]refresh[ARGS]{"a": 1}'
    row = Row("made-up", "any", text, found, content="Yes.", calls=[("refresh", {"a": 1})])
    for cut in (whole, by_size(1)):
        expect(row, answer_to(row, cut))


class Shown:
    """As much of mlx-lm's tokenizer as tells its parser."""

    def __init__(self, name: str | None) -> None:
        module: Any = importlib.import_module(f"mlx_lm.tool_parsers.{name}") if name else None
        self.has_tool_calling = name is not None
        self.tool_parser = getattr(module, "parse_tool_call", None)
        self.tool_call_start = getattr(module, "tool_call_start", None)
        self.tool_call_end = getattr(module, "tool_call_end", None)


@pytest.mark.parametrize("name", [None, *upstream.NAMES])
def test_what_mlx_lm_inferred(name: str | None) -> None:
    found, wanted = inferred(Shown(name)), named(name)
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert (found.names, list(found.openers)) == (wanted.names, list(wanted.openers))


@pytest.mark.parametrize(
    "found",
    [None, [], "refresh", {"arguments": {}}, {"name": 3}, {"name": "refresh", "arguments": [1]},
     {"name": "refresh", "arguments": "{"}, {"name": "refresh", "arguments": {"a": object()}},
     [{"name": "refresh", "arguments": {}}, {"name": ""}]],
    ids=lambda found: str(found).partition(" at 0x")[0],
)  # fmt: skip
def test_what_is_no_call_is_text(found: Any) -> None:
    text = "Well, <c>refresh</c> it."
    row = Row("made-up", "any", text, upstream_format("any", "<c>", "</c>", lambda *_: found))
    answer = answer_to(row, by_size(3))
    assert (answer.content, answer.calls) == (text, [])


def test_a_call_without_end_is_not_held_for_ever() -> None:
    given = upstream_format("any", "<c>", "</c>", lambda *_: [])
    row = Row("made-up", "any", "<c>" + "x" * 600_000, given)
    assert answer_to(replace(row, finish="length"), by_size(50_000)).content == row.text


def test_the_parser_gets_tools_with_parameters() -> None:
    seen: list[Any] = []

    def parse(text: str, tools: list[dict[str, Any]]) -> Any:
        seen.extend(tools)
        return {"name": text, "arguments": '{"n": 1}'}

    request = wire.Generate(0, tools=[{"type": "function", "function": {"name": "bare"}}, *TOOLS])
    given = upstream_format("any", "<c>", "</c>", parse)
    pipeline = make_pipeline(request, wire.Parsers("any", None), tool_format=given)
    assert pipeline is not None
    events = pipeline.feed("<c>bare</c>") + pipeline.finish("stop")
    assert [event.name for event in events if isinstance(event, CallStart)] == ["bare"]
    assert seen[0]["function"]["parameters"] == {}
    assert len(seen) == len(TOOLS) + 1


def test_an_engine_without_mlx_lm_says_that_it_has_none() -> None:
    for name in upstream.NAMES:
        with pytest.raises(ValueError, match="mlx-lm's own"):
            registry.tool_format(name)
