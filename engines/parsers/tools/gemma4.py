"""Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,count:3}<tool_call|>`.

Not JSON: keys are bare, and strings stand between tokens of their own, without any escaping.
"""

import re

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.json_text import dump, load, read_json_text
from engines.parsers.source import NAME, NotACall, Read, Source

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_MAX_DEPTH = 32
_KEY = re.compile(r"[^\s:,{}\[\]<\"]*")
_ATOM = re.compile(r"[^,}\]<]*")


def read_call(reading: Reading) -> Read[None]:
    """Behind `<|tool_call>`: one call, or several."""
    source = reading.source
    yield from source.space()
    found = yield from source.expect("call:")
    while found:
        name = yield from source.run(NAME)
        yield from source.space()
        reading.writer.start(name)
        yield from _object(reading, 0)
        reading.end_call()
        yield from source.space()
        found = yield from source.accept("call:")


def _object(reading: Reading, depth: int) -> Read[None]:
    source, write = reading.source, reading.writer.write
    yield from source.expect("{")
    write("{")
    if (yield from source.space()) == "}":
        source.pos += 1
        write("}")
        return
    while True:
        yield from source.space()
        key = yield from _key(source)
        yield from source.space()
        yield from source.expect(":")
        write(f"{dump(key)}: ")
        yield from _value(reading, depth + 1)
        yield from source.space()
        if (yield from source.expect(",", "}")) == "}":
            break
        write(", ")
    write("}")


def _list(reading: Reading, depth: int) -> Read[None]:
    source, write = reading.source, reading.writer.write
    yield from source.expect("[")
    write("[")
    if (yield from source.space()) == "]":
        source.pos += 1
        write("]")
        return
    while True:
        yield from _value(reading, depth + 1)
        yield from source.space()
        if (yield from source.expect(",", "]")) == "]":
            break
        write(", ")
    write("]")


def _key(source: Source) -> Read[str]:
    first = yield from source.peek()
    if first == '"':
        return str(load((yield from read_json_text(source))))
    if first == "<":
        yield from source.expect(_QUOTE)
        return (yield from _string(source))
    key = yield from source.run(_KEY)
    if not key:
        raise NotACall
    return key


def _value(reading: Reading, depth: int) -> Read[None]:
    if depth > _MAX_DEPTH:
        raise NotACall
    source, write = reading.source, reading.writer.write
    first = yield from source.space()
    if first == "{":
        yield from _object(reading, depth)
    elif first == "[":
        yield from _list(reading, depth)
    elif first == '"':
        write((yield from read_json_text(source)))
    elif first == "<":
        yield from source.expect(_QUOTE)
        write(dump((yield from _string(source))))
    else:
        write(_atom((yield from source.run(_ATOM)).strip()))


def _string(source: Source) -> Read[str]:
    """The text up to the next quoting token."""
    start = search = source.pos
    while True:
        at = source.text.find(_QUOTE, search, source.end)
        if at < 0:
            search = max(start, source.end - len(_QUOTE) + 1)
            yield from source.more()
        elif source.stands(_QUOTE, at):
            source.pos = at + len(_QUOTE)
            return source.text[start:at]
        else:
            search = at + 1


def _atom(text: str) -> str:
    """A number or constant, else a string that lacks its quotes."""
    if not text:
        raise NotACall
    try:
        return dump(load(text))
    except ValueError:
        return dump(text)


FORMAT = ToolFormat(
    names=("gemma4",),
    openers={_OPEN: read_call},
    closers=(_CLOSE, "<|tool_response>"),
    hints=Hints(template=((_OPEN, _CLOSE),), vocabulary=((_OPEN, _CLOSE),)),
)
