"""Calls written as JSON: `{"name": ..., "arguments": {...}}`, alone or in a list."""

from __future__ import annotations

import re
from collections.abc import Collection

from engines.parsers.formats import Reader, Reading
from engines.parsers.json_text import dump, load, read_json, read_json_text
from engines.parsers.source import EndOfText, NotACall, Read, Source

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_OWN_ID = re.compile(r"[A-Za-z0-9]{9}")
"""Ids as Mistral's models write them; any other `id` is made up by the model."""
_KEYS = frozenset((*_NAMES, *_ARGUMENTS, "type", "id", "function"))


def json_calls(reading: Reading) -> Read[None]:
    """A list of call objects, or one, or several with or without a semicolon between them."""
    yield from _read_calls(reading, any_tool=True)


def declared_json_calls(reading: Reading) -> Read[None]:
    """As `json_calls`, but only of declared tools, so that an answer in JSON stays an answer."""
    yield from _read_calls(reading, any_tool=False)


def whole_message(reader: Reader, ends: Collection[str] = ()) -> Reader:
    """`reader`, whose calls count only if nothing but one of `ends` comes after them."""

    def read(reading: Reading) -> Read[None]:
        source = reading.source
        reading.writer.hold_together()
        yield from reader(reading)
        while (yield from source.space()) and (yield from source.accept(*ends)):
            pass
        if not source.at_end():
            raise NotACall
        reading.writer.commit()

    return read


def arguments(reading: Reading, name: str, call_id: str = "") -> Read[None]:
    """The arguments alone, with the name known: a JSON object, or nothing for no arguments."""
    source, writer = reading.source, reading.writer
    if (yield from source.space()) != "{":
        raise EndOfText if source.at_end() else NotACall
    writer.start(name, call_id)
    yield from read_json(source, writer.write)
    reading.end_call()


def _read_calls(reading: Reading, *, any_tool: bool) -> Read[None]:
    source = reading.source
    if (yield from source.space()) == "[":
        yield from read_list(reading, any_tool=any_tool)
        return
    while True:
        yield from _object(reading, any_tool=any_tool)
        yield from source.space()
        yield from source.accept(";")
        if (yield from source.space()) != "{":
            return


def read_list(reading: Reading, *, any_tool: bool) -> Read[None]:
    """A list of call objects, at least one."""
    source = reading.source
    yield from source.expect("[")
    if (yield from source.space()) == "]":
        raise NotACall
    while True:
        yield from _object(reading, any_tool=any_tool)
        yield from source.space()
        if (yield from source.expect(",", "]")) == "]":
            reading.checkpoint()
            return


def _object(reading: Reading, *, any_tool: bool) -> Read[None]:
    """One call object. Without `any_tool` it fails at the first thing that no such call has."""
    source = reading.source
    yield from source.space()
    yield from source.expect("{")
    fields = _Fields(reading, any_tool)
    while True:
        if (yield from source.space()) != '"':
            raise EndOfText if source.at_end() else NotACall
        key = yield from _value(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        yield from fields.read(str(key))
        yield from source.space()
        if (yield from source.expect(",", "}")) == "}":
            break
    fields.finish()


class _Fields:
    """The fields of one call object as they come: arguments stream once the name is known."""

    def __init__(self, reading: Reading, any_tool: bool) -> None:
        self._reading = reading
        self._any_tool = any_tool
        self._found: dict[str, object] = {}
        self._arguments: str | None = None
        self._started = False

    def read(self, key: str) -> Read[None]:
        source = self._reading.source
        if not self._any_tool and key not in _KEYS:
            raise NotACall
        if key not in _ARGUMENTS:
            self._found[key] = yield from _value(source)
            self._check_tool()
        elif self._name() and not self._started and (yield from source.peek()) == "{":
            self._start()
            yield from read_json(source, self._reading.writer.write)
        else:
            self._arguments = yield from read_json_text(source)

    def finish(self) -> None:
        """Writes what did not stream."""
        inner = self._found.get("function")
        if isinstance(inner, dict) and not self._name():
            self._found = inner
            self._check_tool()
            given = next((inner[key] for key in _ARGUMENTS if key in inner), None)
            self._arguments = dump(given) if given is not None else None
        elif isinstance(inner, str) and not self._name():
            self._found["name"] = inner
            self._check_tool()
        if not self._started:
            text = _as_object(self._arguments)
            self._start()
            self._reading.writer.write(text)
        self._reading.end_call()

    def _name(self) -> str:
        found = next((self._found[key] for key in _NAMES if key in self._found), "")
        return found if isinstance(found, str) else ""

    def _check_tool(self) -> None:
        name = self._name()
        if name and not self._any_tool and not self._reading.tools.declares(name):
            raise NotACall

    def _start(self) -> None:
        if not self._any_tool and not self._reading.tools.declares(self._name()):
            raise NotACall
        call_id = self._found.get("id")
        own = isinstance(call_id, str) and _OWN_ID.fullmatch(call_id)
        self._reading.writer.start(self._name(), str(call_id) if own else "")
        self._started = True


def _value(source: Source) -> Read[object]:
    return _loaded((yield from read_json_text(source)))


def _loaded(text: str) -> object:
    try:
        return load(text)
    except ValueError as error:
        raise NotACall from error


def _as_object(text: str | None) -> str:
    """Arguments as JSON object text; models also write none, null, or the object in a string."""
    if text is None or text.strip() in ("null", '""'):
        return "{}"
    value = _loaded(text)
    if isinstance(value, str):
        text, value = value, _loaded(value)
    if not isinstance(value, dict):
        raise NotACall
    return text.strip()
