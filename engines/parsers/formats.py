"""The shape that every family has: one row of data, and readers for what follows its markers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engines.parsers.calls import CallWriter
from engines.parsers.schema import Tools
from engines.parsers.source import Read, Source


@dataclass(slots=True)
class Reading:
    """What a reader works with: the text after its marker, the request's tools, the writer.

    `mark` is where the text begins that is shown if this is no call; it moves with every call
    that is complete.
    """

    source: Source
    tools: Tools
    writer: CallWriter
    mark: int = 0

    def end_call(self) -> None:
        self.writer.end()
        self.checkpoint()

    def checkpoint(self) -> None:
        """What was read up to here belongs to calls that are written."""
        if not self.writer.together:
            self.mark = self.source.pos


Reader = Callable[[Reading], Read[None]]
"""Reads from behind a marker to the end of a call and writes it; raises `NotACall`."""


@dataclass(frozen=True, slots=True)
class Hints:
    """How `auto` knows a format: all texts of one group in the template, or in the vocabulary."""

    template: tuple[tuple[str, ...], ...] = ()
    vocabulary: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How one family writes calls.

    `openers` are the markers a call can begin with; `bare` are the characters that can begin a
    message which is a call as a whole, without a marker; `closers` are swallowed behind a call.
    `prompt_openers` are ends of a prompt with which the text begins behind that opener.
    `channels` marks the families whose messages are routed by headers, and have a machine of
    their own.
    """

    names: tuple[str, ...]
    openers: Mapping[str, Reader] = field(default_factory=dict)
    bare: Mapping[str, Reader] = field(default_factory=dict)
    closers: tuple[str, ...] = ()
    prompt_openers: Mapping[str, Reader] = field(default_factory=dict)
    call_id: Callable[[str], str] = str
    channels: bool = False
    hints: Hints = Hints()


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How one family marks its trace.

    `tags` are pairs of opener and closer. `implicit` families may leave the opener out where the
    prompt has none, so that only a closer tells that the text before it was a trace.
    """

    names: tuple[str, ...]
    tags: tuple[tuple[str, str], ...] = ()
    implicit: bool = False
    channels: bool = False
    hints: Hints = Hints()
