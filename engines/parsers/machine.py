"""The frame in which one answer's text is taken apart: trace, answer and calls in their order.

Owner of what has been shown: every character is shown at most once, as answer, as trace or in a
call. What is held back may still become a marker, is white space before one, or belongs to a call
that is not complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engines.parsers.calls import CallWriter
from engines.parsers.events import Event, Reasoning, Text, add
from engines.parsers.formats import Reading
from engines.parsers.scanner import Markers
from engines.parsers.schema import Tools
from engines.parsers.source import Read, Source

_TRIM_CHARACTERS = 4096

Kind = type[Text] | type[Reasoning]


@dataclass(frozen=True, slots=True)
class Request:
    """What a machine has to know of the request whose answer it reads."""

    tools: Tools
    prompt_tail: str
    special_tokens: frozenset[str]
    thinking: bool | None
    new_call_id: Callable[[], str]
    call_hold: int


class Machine(ABC):
    """Feeds one source and gives out the events of one generator, `run`."""

    def __init__(self, request: Request) -> None:
        self.events: list[Event] = []
        self.source = Source(request.special_tokens)
        self.writer = CallWriter(self.events, request.new_call_id, request.call_hold)
        self.reading = Reading(self.source, request.tools, self.writer)
        self.shown = 0
        """Where the text begins that nobody has seen yet."""
        self.searched = 0
        """Where the search for the next marker goes on."""
        self.after_structure = False
        """White space at the beginning of what is shown next belongs to the structure before."""
        self.blank = True
        """Nothing has been shown since the beginning or the last structure."""
        self.joints: dict[Kind, str] = {Text: "", Reasoning: "\n"}
        """What joins a text to the one of its kind before the last structure."""
        self._shown_kinds: set[Kind] = set()
        self._flowing: Kind = Text
        self._gaps: dict[Kind, str] = {}
        """White space that stood between the last text of a kind and the structure behind it."""
        self.muted = False
        """What comes now belongs to a call that the token limit cut."""
        self._generator: Read[None] | None = self.run()

    def feed(self, text: str, special: bool | None) -> list[Event]:
        self.source.feed(text, special)
        return self._step()

    def finish(self, reason: Literal["stop", "length"]) -> list[Event]:
        """The last events: the text ended because the model did ("stop") or was cut ("length")."""
        self.source.close(natural=reason == "stop")
        return self._step()

    def _step(self) -> list[Event]:
        if self._generator is not None:
            try:
                next(self._generator)
            except StopIteration:
                self._generator = None
        events = self.events.copy()
        self.events.clear()
        return events

    @abstractmethod
    def run(self) -> Read[None]:
        """Reads the source to its end."""

    def flow(self, markers: Markers, kind: Kind) -> Read[tuple[int, str] | None]:
        """Shows text up to the next marker and returns where that is, or None at the end."""
        source = self.source
        while True:
            found = markers.find(source, self.searched)
            if found is not None:
                self._show(kind, found[0])
                return found
            if source.closed:
                self._show(kind, source.end, last=True)
                self.shown = source.end
                return None
            self.searched = markers.open_from(source, self.searched)
            self._show(kind, self.searched)
            self._trim()
            yield

    def skip_to(self, position: int) -> None:
        """The text up to `position` was structure, and so is white space around it."""
        if not self.after_structure:
            unseen = self.source.text[self.shown : position]
            self._gaps[self._flowing] = unseen[: len(unseen) - len(unseen.lstrip())]
        self.shown = max(self.shown, position)
        self.searched = position
        self.after_structure = self.blank = True

    def _show(self, kind: Kind, end: int, *, last: bool = False) -> None:
        """Shows the text up to `end`; white space at its end waits for what comes after it."""
        if not (last and kind is Text):
            end = self.shown + len(self.source.text[self.shown : end].rstrip())
        text = self.source.visible(self.shown, end)
        if self.after_structure:
            text = text.lstrip()
        self.shown = max(self.shown, end)
        if not text or self.muted:
            return
        if self.after_structure and kind in self._shown_kinds:
            text = (self._gaps.get(kind) or self.joints[kind]) + text
        add(self.events, kind(text))
        self._shown_kinds.add(kind)
        self._flowing = kind
        self.after_structure = self.blank = False

    def _trim(self) -> None:
        done = min(self.shown, self.searched)
        if done > _TRIM_CHARACTERS:
            # One character stays, for readers that look at what stands before a marker.
            gone = self.source.trim(done - 1)
            self.shown -= gone
            self.searched -= gone
