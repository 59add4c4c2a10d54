"""Calls written with tags around every value, as `<function=f><parameter=a>1</parameter>...`.

A value is text without any escaping, so it may hold its own closing tag. A closing tag counts only
where the next tag of the structure follows it, or the end of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from engines.parsers.formats import Reading
from engines.parsers.json_text import dump
from engines.parsers.readers.json_calls import arguments
from engines.parsers.source import NAME, SPACE, EndOfText, NotACall, Read, Source

_KEY = re.compile(r"[^<>\"'\n]*")
_QUOTES = ('"', "'")


@dataclass(frozen=True)
class Tags:
    """The tags of one format. `key_open` up to `key_close` hold the name of an argument."""

    body_close: str
    key_open: str
    key_close: str
    value_close: str
    body_open: str
    wrapper_open: str
    wrapper_close: str
    trim_newlines: bool = True

    @cached_property
    def after_value(self) -> tuple[str, ...]:
        return (
            self.key_open,
            self.body_close,
            self.body_open,
            self.wrapper_close,
            self.wrapper_open,
        )

    @cached_property
    def after_body(self) -> tuple[str, ...]:
        return (self.wrapper_close, self.body_open, self.wrapper_open)

    @cached_property
    def call_begins(self) -> re.Pattern[str]:
        """The beginning of a call up to the name of its tool."""
        wrapper, body = re.escape(self.wrapper_open), re.escape(self.body_open)
        opener = rf"(?:{wrapper}\s*(?:{body})?|{body})"
        return re.compile(rf"{opener}[\"']?([\w.\-:/]+)[\"'\s<>]")

    def may_begin(self, text: str) -> bool:
        """Whether `text` may still become the beginning of a call."""
        rest = text.removeprefix(self.wrapper_open).lstrip()
        if self.wrapper_open.startswith(text) or self.body_open.startswith(rest):
            return True
        opened = rest != text or rest.startswith(self.body_open)
        name = rest.removeprefix(self.body_open).lstrip("\"'")
        return opened and NAME.fullmatch(name) is not None


FUNCTION = Tags(
    body_open="<function=",
    key_open="<parameter=",
    key_close=">",
    value_close="</parameter>",
    body_close="</function>",
    wrapper_open="<tool_call>",
    wrapper_close="</tool_call>",
)
INVOKE = Tags(
    body_open="<invoke name=",
    key_open="<parameter name=",
    key_close=">",
    value_close="</parameter>",
    body_close="</invoke>",
    wrapper_open="<minimax:tool_call>",
    wrapper_close="</minimax:tool_call>",
)


def read_function(reading: Reading) -> Read[None]:
    """Behind `<function=`: the name, then tagged values or one JSON object."""
    yield from _read_body(reading, FUNCTION)


def read_invoke(reading: Reading) -> Read[None]:
    """Behind `<invoke name=`."""
    yield from _read_body(reading, INVOKE)


def _read_body(reading: Reading, tags: Tags) -> Read[None]:
    source = reading.source
    yield from source.accept(*_QUOTES)
    name = yield from source.run(NAME)
    yield from source.accept(*_QUOTES)
    yield from source.space()
    yield from source.expect(">")
    if (yield from source.space()) == "{":
        yield from arguments(reading, name)
        yield from source.space()
        yield from source.accept(tags.body_close)
        reading.checkpoint()
        return
    reading.writer.start(name)
    values = Values(reading, name)
    while (yield from _next_argument(reading, tags, values)):
        key = (yield from source.run(_KEY)).strip()
        yield from source.accept(*_QUOTES)
        yield from source.expect(tags.key_close)
        text = yield from read_value(source, tags, values)
        values.add(key, _without_newlines(text) if tags.trim_newlines else text)
    values.end()


def _next_argument(reading: Reading, tags: Tags, values: Values) -> Read[bool]:
    """Whether another argument comes; else the body has ended, perhaps without its tag."""
    source = reading.source
    yield from source.space()
    found = yield from source.accept(tags.key_open, tags.body_close)
    if found == tags.key_open:
        yield from source.accept(*_QUOTES)
        return True
    if found == tags.body_close or (source.at_end() and source.natural):
        return False
    if source.at_end():
        raise EndOfText
    start = source.pos
    following = yield from source.accept(*tags.after_body)
    source.pos = start
    if not following:
        raise NotACall
    return False


class Values:
    """The arguments of one call, written one by one as their values are complete."""

    def __init__(self, reading: Reading, name: str, *, guess: bool = False) -> None:
        self._reading = reading
        self._name = name
        self._guess = guess
        self._seen: set[str] = set()

    def add(self, key: str, text: str) -> None:
        if not key:
            raise NotACall
        value = self._reading.tools.value(self._name, key, text, guess=self._guess)
        opener = ", " if self._seen else "{"
        self._reading.writer.write(f"{opener}{dump(key)}: {value}")
        self._seen.add(key)

    def expects(self, key: str) -> bool:
        """Whether `key` is an argument of the tool that has not come yet."""
        return key not in self._seen and self._reading.tools.declares_key(self._name, key)

    def may_call(self, name: str) -> bool:
        """Whether a call of `name` is to be expected behind this one."""
        tools = self._reading.tools
        return not tools or tools.declares(name)

    def end(self) -> None:
        self._reading.writer.write("}" if self._seen else "{}")
        self._reading.end_call()


def read_value(source: Source, tags: Tags, values: Values) -> Read[str]:
    """The text of one value; the source then stands behind its closing tag, or where it lacks."""
    ends = re.compile("|".join(map(re.escape, (tags.value_close, tags.body_close, tags.key_open))))
    longest = max(len(tags.value_close), len(tags.body_close), len(tags.key_open))
    start = at = source.pos
    refused = -1
    while True:
        found = ends.search(source.text, at, source.end)
        if found is None:
            at = max(at, source.end - longest + 1)
            yield from source.more()
            continue
        real = source.stands(found.group(), found.start())
        verdict = _judge(source, tags, values, found) if real else False
        if verdict is None:
            yield from source.more()
        elif not verdict:
            at = found.end()
            if refused < 0 and found.group() == tags.value_close:
                refused = found.start()
        elif found.group() == tags.value_close:
            source.pos = found.end()
            return source.text[start : found.start()]
        else:
            source.pos = found.start()
            return source.text[start : refused if refused >= 0 else found.start()]


def _judge(source: Source, tags: Tags, values: Values, found: re.Match[str]) -> bool | None:
    """Whether the tag found ends the value; None if more text is needed to say so."""
    tag, behind = found.group(), found.end()
    if tag == tags.value_close:
        return _followed(source, behind, tags.after_value)
    if tag == tags.body_close:
        return _body_ends(source, tags, values, behind)
    return _unclosed(source, tags, values, behind)


def _body_ends(source: Source, tags: Tags, values: Values, behind: int) -> bool | None:
    """A body that ends inside of a value must be followed by another call or the end of all."""
    behind = _skip_space(source, behind)
    if source.stands(tags.wrapper_close, behind):
        behind = _skip_space(source, behind + len(tags.wrapper_close))
    elif source.may_stand(tags.wrapper_close, behind):
        return None
    if behind >= source.end:
        return True if source.closed else None
    following = source.text[behind : source.end]
    if call := tags.call_begins.match(following):
        return values.may_call(call.group(1))
    return None if not source.closed and tags.may_begin(following) else False


def _unclosed(source: Source, tags: Tags, values: Values, behind: int) -> bool | None:
    """The next argument on a line of its own, where the tool has such an argument."""
    if source.text[behind - len(tags.key_open) - 1] != "\n":
        return False
    quote = 1 if source.text[behind : behind + 1] in ("'", '"') else 0
    key_end = _KEY.match(source.text, behind + quote, source.end)
    if key_end is None or key_end.end() >= source.end:
        return None if not source.closed else False
    if source.text[key_end.end()] not in "\"'>":
        return False
    return values.expects(key_end.group().strip())


def _followed(source: Source, at: int, literals: tuple[str, ...]) -> bool | None:
    """Whether, behind white space, one of `literals` or the end of the text comes."""
    at = _skip_space(source, at)
    if at >= source.end:
        return True if source.closed else None
    if any(source.stands(literal, at) for literal in literals):
        return True
    return None if any(source.may_stand(literal, at) for literal in literals) else False


def _skip_space(source: Source, at: int) -> int:
    found = SPACE.match(source.text, at, source.end)
    return found.end() if found else at


def _without_newlines(text: str) -> str:
    """Templates put a value on lines of its own."""
    return text.removeprefix("\n").removesuffix("\n")
