"""Runs a fixture row through a pipeline and collects what a client would see of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from engines.parsers.events import CallArguments, CallEnd, CallStart, Event, Reasoning, Text
from engines.parsers.formats import ToolFormat
from engines.parsers.pipeline import CALL_HOLD_CHARACTERS, Pipeline

FIXTURES = Path(__file__).parents[2] / "fixtures" / "parsers"
CUT = "\u00a6"
"""Marks in a row's text where its own pieces end."""

Piece = tuple[str, bool | None]
"""A text, and whether it is a special token."""


@dataclass(frozen=True)
class Row:
    """One answer of a model and what has to become of it."""

    family: str
    id: str
    text: str
    tool: str | ToolFormat | None = None
    reasoning: str | None = None
    prompt: str = ""
    finish: Literal["stop", "length"] = "stop"
    stop: tuple[str, ...] = ()
    thinking: bool | None = None
    tokens: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()
    content: str = ""
    trace: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stopped: str | None = None
    ids: str = ".+"
    call_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.family}:{self.id}"

    def pieces(self, cut: Callable[[str], Iterable[str]]) -> list[Piece]:
        """The text as it is fed: special tokens whole, everything else as `cut` cuts it."""
        if not self.tokens:
            return [(part, None) for part in cut(self.text)]
        real = [token for token in self.tokens if token not in self.spelled]
        parts = re.split("(" + "|".join(map(re.escape, real)) + ")", self.text.replace(CUT, ""))
        pieces: list[Piece] = []
        for part in filter(None, parts):
            pieces += [(part, True)] if part in real else [(each, False) for each in cut(part)]
        return pieces


def _rows() -> Iterator[Row]:
    for path in sorted(FIXTURES.glob("*.yaml")):
        if path.stem == "tools":
            continue
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        shared = {key: value for key, value in document.items() if key != "rows"}
        for given in document["rows"]:
            values = shared | given
            for key in ("stop", "tokens", "spelled", "call_ids"):
                values[key] = tuple(values.get(key, ()))
            values["calls"] = [(name, arguments) for name, arguments in values.get("calls", [])]
            yield Row(family=path.stem, **values)


def _tools() -> list[dict[str, Any]]:
    document = yaml.safe_load((FIXTURES / "tools.yaml").read_text(encoding="utf-8"))
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": kind} for key, kind in properties.items()},
                },
            },
        }
        for name, properties in document.items()
    ]


ROWS = list(_rows())
TOOLS = _tools()


def whole(text: str) -> list[str]:
    return [text.replace(CUT, "")]


def as_marked(text: str) -> list[str]:
    return text.split(CUT)


def by_size(*sizes: int) -> Callable[[str], list[str]]:
    """Cuts into pieces of these sizes, over and over."""

    def cut(text: str) -> list[str]:
        text = text.replace(CUT, "")
        pieces: list[str] = []
        for size in itertools.cycle(sizes):
            if not text:
                return pieces
            pieces.append(text[:size])
            text = text[size:]
        return pieces

    return cut


@dataclass
class Call:
    call_id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass
class Answer:
    """All events of one answer put together; checks their order on the way."""

    content: str = ""
    trace: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str = ""
    stopped: str | None = None

    def add(self, event: Event) -> None:
        match event:
            case Text(text):
                assert text, "an empty event"
                self.content += text
            case Reasoning(text):
                assert text, "an empty event"
                self.trace += text
            case CallStart(index, call_id, name):
                assert index == len(self.calls), "indices count from 0"
                self.calls.append(Call(call_id, name))
            case CallArguments(index, text):
                assert index == len(self.calls) - 1
                assert not self.calls[index].complete
                self.calls[index].arguments += text
            case CallEnd(index):
                assert not self.calls[index].complete
                self.calls[index].complete = True


def pipeline(row: Row, call_hold: int = CALL_HOLD_CHARACTERS) -> Pipeline:
    numbers = itertools.count(1)
    return Pipeline(
        tool=row.tool,
        reasoning=row.reasoning,
        tools=TOOLS,
        stops=row.stop,
        prompt_tail=row.prompt,
        special_tokens=row.tokens,
        thinking=row.thinking,
        new_call_id=lambda: f"call_{next(numbers):024x}",
        call_hold=call_hold,
    )


def steps(row: Row, pieces: list[Piece], call_hold: int) -> Iterator[Answer]:
    """Feeds piece by piece; the answer that is yielded again and again grows."""
    parser, answer = pipeline(row, call_hold), Answer()
    for text, special in pieces:
        for event in parser.feed(text, special):
            answer.add(event)
        yield answer
    for event in parser.finish(row.finish):
        answer.add(event)
    answer.finish_reason = parser.finish_reason(row.finish)
    answer.stopped = parser.stopped
    yield answer


def answer_to(
    row: Row, cut: Callable[[str], Iterable[str]], call_hold: int = CALL_HOLD_CHARACTERS
) -> Answer:
    *_, answer = steps(row, row.pieces(cut), call_hold)
    return answer
