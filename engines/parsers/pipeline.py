"""Model text to events: the trace is split off, then calls are found, then stop strings.

One pipeline reads one answer, and owns all state of it. Stop strings act on the visible answer
only, never inside of a trace or of a call. Without parsers and stop strings, text passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engines.parsers import registry
from engines.parsers.channels import HarmonyMachine
from engines.parsers.events import CallEnd, Event, Text, add
from engines.parsers.formats import ToolFormat
from engines.parsers.machine import Machine, Request
from engines.parsers.reasoning import auto
from engines.parsers.schema import Tools
from engines.parsers.stops import StopScanner
from engines.parsers.tags import TagMachine

CALL_HOLD_CHARACTERS = 512

_NO_TOOLS = ToolFormat(names=("none",))


@dataclass(kw_only=True, slots=True)
class Pipeline:
    """Takes one answer apart. Raises `ValueError` when made with a name that no family has.

    `tool` and `reasoning` are names of families, None where there is none; a tool family that is
    in no table comes as its format. With a tool family alone, a tagged trace is split off all the
    same: a call that was drafted there must not run. `tools` are the request's tools in the OpenAI
    form. `prompt_tail` is the end of the rendered prompt, which may have opened a trace or a
    header. `special_tokens` are the tokenizer's: if
    `feed` is told which pieces are special tokens, their spelling in text is only text.
    `new_call_id` makes ids of the form `call_` and 24 hex digits.

    A call is held back until it is complete, so that one which turns out to be none is text;
    arguments longer than `call_hold` characters stream instead, 0 streams from the first.
    """

    tool: str | ToolFormat | None
    reasoning: str | None
    tools: Sequence[Mapping[str, Any]]
    stops: Sequence[str]
    prompt_tail: str
    special_tokens: Collection[str]
    thinking: bool | None
    new_call_id: Callable[[], str]
    call_hold: int = CALL_HOLD_CHARACTERS
    stopped: str | None = field(default=None, init=False)
    """The stop string that matched; nothing comes after it."""
    _called: bool = field(default=False, init=False)
    _machine: Machine | None = field(init=False)
    _scanner: StopScanner | None = field(init=False)

    def __post_init__(self) -> None:
        self._machine = self._make_machine()
        self._scanner = StopScanner(self.stops) if any(self.stops) else None

    def _make_machine(self) -> Machine | None:
        given = self.tool
        tool = given if isinstance(given, ToolFormat) else registry.tool_format(given) or _NO_TOOLS
        reasoning = registry.reasoning_format(self.reasoning)
        if tool is _NO_TOOLS and reasoning is None:
            return None
        request = Request(
            tools=Tools(self.tools),
            prompt_tail=self.prompt_tail,
            special_tokens=frozenset(self.special_tokens),
            thinking=self.thinking,
            new_call_id=lambda: tool.call_id(self.new_call_id()),
            call_hold=self.call_hold,
        )
        reasoning = reasoning or auto.FORMAT
        if tool.channels or reasoning.channels:
            return HarmonyMachine(request, calls=tool.channels)
        return TagMachine(request, tool, reasoning)

    def feed(self, text: str, special: bool | None = None) -> list[Event]:
        """The events that `text` completes. `special`: whether it is one special token, if known.

        After a stop string matched, nothing comes of more text.
        """
        if self._machine is None:
            if special or not text:
                return []
            if self._scanner is None:
                return [Text(text)]
            events: list[Event] = [Text(text)]
        elif self.stopped is None:
            events = self._machine.feed(text, special)
        else:
            return []
        return self._counted(events if self._scanner is None else self._until_stop(events))

    def finish(self, reason: Literal["stop", "length"]) -> list[Event]:
        """The last events: the model ended ("stop") or the token limit cut it ("length")."""
        if self.stopped is not None:
            return []
        events = self._machine.finish(reason) if self._machine is not None else []
        if self._scanner is not None:
            events = self._until_stop(events)
            if self.stopped is None and (held := self._scanner.flush()):
                add(events, Text(held))
        return self._counted(events)

    def finish_reason(self, reason: Literal["stop", "length"]) -> str:
        """What the client is told: "stop", "length", or "tool_calls" if there are calls to run."""
        if self.stopped is not None:
            reason = "stop"
        return "tool_calls" if self._called and reason == "stop" else reason

    def _counted(self, events: list[Event]) -> list[Event]:
        if not self._called:
            self._called = any(isinstance(event, CallEnd) for event in events)
        return events

    def _until_stop(self, events: list[Event]) -> list[Event]:
        """`events` up to the first stop string in their text."""
        shown: list[Event] = []
        if self._scanner is None or self.stopped is not None:
            return shown
        for event in events:
            if not isinstance(event, Text):
                # No stop string reaches over a call or a trace.
                if held := self._scanner.flush():
                    add(shown, Text(held))
                add(shown, event)
                continue
            text, self.stopped = self._scanner.feed(event.text)
            if text:
                add(shown, Text(text))
            if self.stopped is not None:
                break
        return shown
