"""Families that only mlx-lm knows: its parser reads what stands between two markers.

They are a fallback. A call is held until its end marker and then read at once, so its arguments do
not stream; a text that the parser refuses is shown as it is. Who makes a format gives the parser,
as this package imports none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engines.parsers.formats import Reader, Reading, ToolFormat
from engines.parsers.json_text import dump, load
from engines.parsers.scanner import Markers
from engines.parsers.schema import Tools
from engines.parsers.source import EndOfText, NotACall, Read

NAMES = ("function_gemma", "kimi_k3", "longcat", "minicpm5", "muse_spark")
"""mlx-lm's modules for families that have none of ours, as they are named in a registry file."""

Parse = Callable[[str, list[dict[str, Any]]], Any]
"""From the text between the markers, and the tools in the OpenAI form, to one call or a list of
calls, each with `name` and `arguments`. May raise anything."""

_MOST_CHARACTERS = 2**18
"""A call that grows longer than this is none; foreign patterns are not tried on more."""


def upstream_format(name: str, start: str, end: str, parse: Parse) -> ToolFormat:
    """The family `name`, whose calls stand between `start` and `end`; "" is the text's own end."""
    ends = (end,) if end else ()
    return ToolFormat(names=(name,), openers={start: _reader(ends, parse)}, closers=ends)


def _reader(ends: tuple[str, ...], parse: Parse) -> Reader:
    markers = Markers(ends)

    def read(reading: Reading) -> Read[None]:
        source = reading.source
        start = source.pos
        stop = yield from _end(reading, markers)
        calls = list(_calls(parse, source.visible(start, stop), reading.tools))
        if not calls:
            raise NotACall
        source.pos = stop
        for name, text in calls:
            reading.writer.start(name)
            reading.writer.write(text)
            reading.end_call()

    return read


def _end(reading: Reading, markers: Markers) -> Read[int]:
    """Where the end marker stands; a model that ended by itself may have left it out."""
    source = reading.source
    start = searched = source.pos
    while True:
        found = markers.find(source, searched)
        if found is not None and found[0] + len(found[1]) <= source.end:
            return found[0]
        if source.closed:
            if not source.natural:
                raise EndOfText
            return source.end
        searched = min(markers.open_from(source, searched), source.end)
        if searched - start > _MOST_CHARACTERS:
            raise NotACall
        yield


def _calls(parse: Parse, text: str, tools: Tools) -> Sequence[tuple[str, str]]:
    """Names and arguments, as JSON text. Raises `NotACall` for what the parser does not take."""
    try:
        found = parse(text, tools.functions())
    except Exception as error:  # foreign code on a model's text raises what it likes
        raise NotACall from error
    return [_call(each, tools) for each in (found if isinstance(found, list) else [found])]


def _call(found: Any, tools: Tools) -> tuple[str, str]:
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        raise NotACall
    name, given = found["name"], found.get("arguments")
    if not name or not name.isprintable():
        raise NotACall
    try:
        arguments = load(given) if isinstance(given, str) else given or {}
        if not isinstance(arguments, Mapping):
            raise NotACall
        pairs = [
            f"{dump(str(key))}: {_value(tools, name, str(key), value)}"
            for key, value in arguments.items()
        ]
    except (ValueError, TypeError) as error:
        raise NotACall from error
    return name, "{" + ", ".join(pairs) + "}"


def _value(tools: Tools, name: str, key: str, value: Any) -> str:
    """A value as JSON text, of the type that the request declares."""
    if not tools.declares_key(name, key):
        return dump(value)
    said = isinstance(value, str)
    return tools.value(name, key, value if said else dump(value), guess=not said)
