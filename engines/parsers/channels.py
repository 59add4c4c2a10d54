"""Harmony, the format of gpt-oss: an answer is messages, and each header says where one goes.

A header may hold a role, a recipient (`to=functions.name`), a channel and a content type, and ends
with `<|message|>`. The channel `analysis` is the trace; a recipient makes the message a call;
everything else is the answer. Headers are never text.
(https://cookbook.openai.com/articles/openai-harmony)
"""

from __future__ import annotations

import re

from engines.parsers.events import Reasoning, Text
from engines.parsers.machine import Kind, Machine, Request
from engines.parsers.readers.json_calls import arguments
from engines.parsers.scanner import Markers
from engines.parsers.source import EndOfText, NotACall, Read

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_TO_FUNCTION = "to=functions."
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADER_CHARACTERS = 512
"""A header that grows longer than this is none."""

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(_CHANNEL) + r"\s*(\w+)")


class HarmonyMachine(Machine):
    def __init__(self, request: Request, *, calls: bool) -> None:
        """With `calls` False, messages to tools are shown as answer."""
        super().__init__(request)
        self._calls = calls
        self.joints[Text] = "\n"
        tokens = request.special_tokens
        self._body_ends = Markers({*_ENDS, _START, _CHANNEL}, tokens)
        self._header_ends = Markers({_MESSAGE}, tokens)
        self._open_header = request.prompt_tail.rpartition(_START)[2]

    def run(self) -> Read[None]:
        if self._open_header.endswith(_MESSAGE):
            yield from self._message(self._open_header)
        while not self.source.at_end():
            if (yield from self._at_header()):
                yield from self._header_and_message()
            else:
                yield from self._body(Text)

    def _at_header(self) -> Read[bool]:
        """Whether a header begins here rather than text."""
        source = self.source
        start = source.pos
        yield from source.space()
        found = yield from source.accept(_START, _CHANNEL, _MESSAGE, _TO_FUNCTION)
        source.pos = start
        return bool(found)

    def _header_and_message(self) -> Read[None]:
        source = self.source
        start = search = source.pos
        while (found := self._header_ends.find(source, search)) is None:
            search = self._header_ends.open_from(source, search)
            if source.closed or search - start > _HEADER_CHARACTERS:
                break
            yield
        if (search if found is None else found[0]) - start > _HEADER_CHARACTERS:
            # Behind the marker that made it look like one, or the same marker is found again.
            yield from self._body(Text, search_from=start + 1)
            return
        if found is None:
            source.pos = self.shown = source.end
            return
        header = source.text[start : found[0]]
        source.pos = found[0] + len(_MESSAGE)
        yield from self._message(f"{self._open_header} {header}")

    def _message(self, header: str) -> Read[None]:
        self._open_header = ""
        self.skip_to(self.source.pos)
        channel = _CHANNEL_NAME.search(header)
        recipient = _RECIPIENT.search(header)
        name = self._tool(recipient.group(1)) if recipient else ""
        if name and self._calls:
            yield from self._call(name)
        else:
            trace = channel is not None and channel.group(1) == "analysis"
            yield from self._body(Reasoning if trace else Text)

    def _tool(self, recipient: str) -> str:
        """The tool that `recipient` names, or "" if it is none of the client's."""
        if recipient.startswith("functions."):
            return recipient.removeprefix("functions.")
        return recipient if self.reading.tools.declares(recipient) else ""

    def _body(self, kind: Kind, search_from: int = 0) -> Read[None]:
        """Shows text up to the end of the message and steps behind that."""
        self.shown = self.source.pos
        self.searched = max(self.shown, search_from)
        found = yield from self.flow(self._body_ends, kind)
        self._step_behind(found)

    def _step_behind(self, found: tuple[int, str] | None) -> None:
        source = self.source
        if found is None:
            source.pos = source.end
            return
        at, marker = found
        source.pos = at + (len(marker) if marker in _ENDS else 0)
        self.skip_to(source.pos)

    def _call(self, name: str) -> Read[None]:
        source = self.source
        self.reading.mark = source.pos
        try:
            yield from self._arguments(name)
        except NotACall as error:
            written = self.writer.drop()
            cut = isinstance(error, EndOfText) and not source.natural
            self.muted = self.muted or cut
            if not written:
                source.pos = self.reading.mark
            yield from self._body(Text)
            return
        found = self._body_ends.find(source, source.pos)
        while found is None and not source.closed:
            yield
            found = self._body_ends.find(source, source.pos)
        self._step_behind(found)

    def _arguments(self, name: str) -> Read[None]:
        """One JSON object; nothing at all is a call without arguments."""
        source = self.source
        yield from source.space()
        start = source.pos
        ended = yield from source.accept(*_ENDS)
        source.pos = start
        if not ended and not source.at_end():
            yield from arguments(self.reading, name)
        elif ended or source.natural:
            self.writer.start(name)
            self.writer.write("{}")
            self.reading.end_call()
        else:
            raise EndOfText
