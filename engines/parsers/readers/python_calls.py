"""Calls in Python syntax: `[name(key=value), other()]`."""

from __future__ import annotations

import re
from collections.abc import Callable

from engines.parsers.formats import Reading
from engines.parsers.json_text import dump
from engines.parsers.python_text import Call, calls, parsed, read_brackets
from engines.parsers.source import EndOfText, NotACall, Read

_IDENTIFIER = re.compile(r"[\w.\-]*")


def python_calls(reading: Reading) -> Read[None]:
    """A list of calls, of whatever tools."""
    yield from _read_list(reading, lambda _name: True)


def declared_python_calls(reading: Reading) -> Read[None]:
    """As `python_calls`, but only of declared tools, so that a list in an answer stays text."""
    yield from _read_list(reading, reading.tools.declares)


def _read_list(reading: Reading, allowed: Callable[[str], bool]) -> Read[None]:
    source = reading.source
    yield from source.space()
    start = source.pos
    yield from source.expect("[")
    yield from source.space()
    name = yield from source.run(_IDENTIFIER)
    if (yield from source.space()) != "(" or not allowed(name):
        raise EndOfText if source.at_end() else NotACall
    source.pos = start
    text = yield from read_brackets(source)
    found = parsed(text, calls)
    if not all(allowed(each) for each, _ in found):
        raise NotACall
    write(reading, found)


def write(reading: Reading, found: list[Call]) -> None:
    """Writes calls that are known as a whole."""
    try:
        texts = [dump(given) for _, given in found]
    except ValueError as error:
        raise NotACall from error
    for (name, _), text in zip(found, texts, strict=True):
        reading.writer.start(name)
        reading.writer.write(text)
        reading.end_call()
