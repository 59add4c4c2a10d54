"""Families that mark trace and calls by tags within one text.

The trace is split off first: a call drafted in a trace that closes is part of the trace. Only where
the text ends by itself inside of the trace, right behind a call, the model forgot the closing tag
and the call is one.
"""

from __future__ import annotations

from engines.parsers.events import Reasoning, Text
from engines.parsers.formats import Reader, ReasoningFormat, ToolFormat
from engines.parsers.machine import Machine, Request
from engines.parsers.scanner import Markers
from engines.parsers.source import EndOfText, NotACall, Read

_UNDECIDED_CHARACTERS = 1024
"""An implicit family's text without any tag is a trace once it is longer than this."""

_WASTE_CHARACTERS = 2**18
"""Text read for nothing behind markers, after which an answer is not searched for calls any more.

A model that repeats an opening tag without end would otherwise cost the square of its length.
"""

_QUOTES = frozenset("`'\"")
_BEHIND_A_MENTION = frozenset(" `'\".,;:)")


class TagMachine(Machine):
    def __init__(self, request: Request, tool: ToolFormat, reasoning: ReasoningFormat) -> None:
        super().__init__(request)
        special = request.special_tokens
        self._prompt_tail = request.prompt_tail.rstrip()
        self._thinking = request.thinking
        self._tool = tool
        self._reasoning = reasoning
        self._closers = dict(reasoning.tags)
        tags = {tag for pair in reasoning.tags for tag in pair}
        self._only_tags = Markers(tags, special)
        self._in_answer = Markers(tags | set(tool.openers), special)
        self._in_trace = {
            closer: Markers({closer, *tool.openers}, special) for closer in self._closers.values()
        }
        self._fences = {closer: Markers({closer}, special) for closer in self._closers.values()}
        self._message_begins = True
        self._wasted = 0

    def run(self) -> Read[None]:
        for end, reader in self._tool.prompt_openers.items():
            if self._prompt_tail.endswith(end):
                yield from self._call("", reader, 0)
                self._message_begins = False
        yield from self._beginning()
        while (yield from self._answer()):
            pass

    def _beginning(self) -> Read[None]:
        """The trace that the prompt, or the family, opens before any text."""
        tail = self._prompt_tail
        for opener, closer in self._reasoning.tags:
            if tail.endswith(opener):
                yield from self._trace(closer)
                return
        if not self._reasoning.implicit or tail.endswith(tuple(self._closers.values())):
            return
        if self._thinking is not False and (yield from self._is_trace()):
            yield from self._trace(self._reasoning.tags[0][1])

    def _is_trace(self) -> Read[bool]:
        """Whether a text that nothing opened is a trace: a closer tells, or the cut, or length."""
        source = self.source
        yield from source.space()
        start = source.pos
        opener = yield from source.accept(*self._closers, *self._tool.openers)
        source.pos = 0
        if opener:
            return False
        if self._thinking:
            return True
        fence = self._fences[self._reasoning.tags[0][1]]
        while fence.find(source, start) is None:
            if source.closed:
                return not source.natural
            start = fence.open_from(source, start)
            if start > _UNDECIDED_CHARACTERS:
                break
            yield
        return True

    def _answer(self) -> Read[bool]:
        """The answer up to the next structure, and that structure; false at the end."""
        if self._message_begins and self._tool.bare:
            yield from self._bare_call()
        found = yield from self.flow(self._in_answer, Text)
        if found is None:
            return False
        at, marker = found
        if marker in self._tool.openers:
            yield from self._call(marker, self._tool.openers[marker], at)
        elif not (yield from self._is_structure(at, marker)):
            self.searched = at + len(marker)
        elif marker in self._closers:
            self.source.pos = at + len(marker)
            yield from self._trace(self._closers[marker])
        else:
            self.skip_to(at + len(marker))
        return True

    def _is_structure(self, at: int, tag: str) -> Read[bool]:
        """Whether a tag of a trace is meant as one, or is only mentioned in the answer."""
        if self.blank or self.source.needs_token(tag):
            return True
        self.source.pos = at + len(tag)
        behind = yield from self.source.peek()
        return self.source.text[at - 1] not in _QUOTES and behind not in _BEHIND_A_MENTION

    def _bare_call(self) -> Read[None]:
        self._message_begins = False
        self.source.pos = self.shown
        reader = self._tool.bare.get((yield from self.source.space()))
        if reader is not None:
            yield from self._call("", reader, self.source.pos, bare=True)

    # --- calls --------------------------------------------------------------------------------

    def _call(self, marker: str, reader: Reader, at: int, *, bare: bool = False) -> Read[None]:
        source = self.source
        source.pos = at + len(marker)
        self.reading.mark = at
        try:
            yield from reader(self.reading)
        except NotACall as error:
            self._no_call(at, marker, error)
            cut = isinstance(error, EndOfText) and not source.natural
            # A marker says that a call was cut; a brace alone may as well begin an answer in JSON.
            self.muted = self.muted or (cut and not bare)
            return
        yield from source.accept_all(self._tool.closers)
        self.skip_to(source.pos)

    def _no_call(self, at: int, marker: str, error: NotACall) -> None:
        """Goes on behind the marker, so that no good call is lost in what was no call."""
        self._waste(at, error)
        if self.writer.drop():
            # A part of it is with the client already; that text must not be shown again.
            self.skip_to(self.source.pos)
        if self.reading.mark > at:
            self.skip_to(self.reading.mark)
        else:
            self.searched = at + len(marker)

    def _waste(self, at: int, error: NotACall) -> None:
        read_to = self.source.end if isinstance(error, EndOfText) else self.source.pos
        self._wasted += read_to - at
        if self._wasted > _WASTE_CHARACTERS:
            self._in_answer, self._in_trace = self._only_tags, self._fences

    # --- the trace ----------------------------------------------------------------------------

    def _trace(self, closer: str) -> Read[None]:
        """From `source.pos` to the closing tag, or the end of the text."""
        yield from self.source.accept_all(tuple(self._closers))
        self.skip_to(self.source.pos)
        while True:
            found = yield from self.flow(self._in_trace[closer], Reasoning)
            if found is None:
                return
            at, marker = found
            if marker != closer:
                if (yield from self._forgotten_closer(at, marker, closer)):
                    return
            elif (yield from self._is_quoted(at, marker)):
                self.searched = at + len(marker)
            else:
                break
        self.skip_to(at + len(closer))
        self._message_begins = True

    def _is_quoted(self, at: int, tag: str) -> Read[bool]:
        before = self.source.text[at - 1 : at]
        if before not in _QUOTES or self.source.needs_token(tag):
            return False
        self.source.pos = at + len(tag)
        return (yield from self.source.peek()) == before

    def _forgotten_closer(self, at: int, marker: str, closer: str) -> Read[bool]:
        """Reads the calls that begin here; true if they end the text, and so were written."""
        source, writer = self.source, self.writer
        behind = source.pos = at + len(marker)
        self.reading.mark = at
        writer.hold_together()
        source.fence(self._fences[closer])
        try:
            while marker:
                yield from self._tool.openers[marker](self.reading)
                yield from source.accept_all(self._tool.closers)
                behind = source.pos
                marker = yield from source.accept(*self._tool.openers)
            real = source.natural and source.at_end() and writer.holds_calls
        except NotACall as error:
            self._waste(at, error)
            real = False
        finally:
            source.fence(None)
        if real:
            writer.commit()
            self.skip_to(source.end)
        else:
            writer.drop()
            self.searched = behind
        return real
