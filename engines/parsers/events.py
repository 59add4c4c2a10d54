"""What a model's text turns out to be: a small closed set of events, in the order of the text.

The text of all `Text` events is the answer, that of all `Reasoning` events the trace. A call is
one `CallStart`, pieces of arguments that join to one JSON object, and one `CallEnd`. A call without
its `CallEnd` was broken off (the token limit, or text that stopped being JSON) and must not be run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """`index` counts the calls of one answer from 0."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    index: int


Event = Text | Reasoning | CallStart | CallArguments | CallEnd


def add(events: list[Event], event: Event) -> None:
    """Appends `event`, or lengthens the last one where both are pieces of the same text."""
    last = events[-1] if events else None
    match last, event:
        case (Text(before), Text(after)):
            events[-1] = Text(before + after)
        case (Reasoning(before), Reasoning(after)):
            events[-1] = Reasoning(before + after)
        case (CallArguments(index, before), CallArguments(same, after)) if index == same:
            events[-1] = CallArguments(index, before + after)
        case _:
            events.append(event)
