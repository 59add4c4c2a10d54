"""JSON (RFC 8259) read as it comes: where the value ends, and that it is JSON so far.

One leniency: control characters inside of strings, which models write, are escaped in the output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from engines.parsers.source import NotACall, Read, Source

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ATOM = re.compile(r"[-+.0-9a-zA-Z]+")
_WHOLE_ATOM = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_HEX = re.compile(r"[0-9a-fA-F]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _Want(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    ATOM = auto()
    NOTHING = auto()


class JsonScan:
    """Scans one value. `broken` once a character came that cannot be part of it."""

    def __init__(self) -> None:
        self.broken = False
        self._want = _Want.VALUE
        self._open: list[str] = []
        self._string_is_key = False
        self._hex_left = 0
        self._atom = ""
        self._out: list[str] = []

    @property
    def done(self) -> bool:
        return self._want is _Want.NOTHING

    def take(self) -> str:
        """The JSON text read since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def advance(self, text: str, pos: int, end: int) -> int:
        """Reads from `pos` up to `end`, the end of the value, or what breaks it; returns where."""
        while pos < end and self._want is not _Want.NOTHING:
            try:
                pos = _STEPS.get(self._want, JsonScan.structure)(self, text, pos, end)
            except NotACall:
                self.broken = True
                break
        return pos

    def structure(self, text: str, pos: int, end: int) -> int:
        space = _SPACE.match(text, pos, end)
        assert space is not None
        if space.end() > pos:
            self._out.append(space.group())
            return space.end()
        character = text[pos]
        if character == '"' and self._want is not _Want.COLON:
            self._begin_string()
        elif character in "{[" and self._want in (_Want.VALUE, _Want.VALUE_OR_END):
            self._open.append(character)
            self._want = _Want.KEY_OR_END if character == "{" else _Want.VALUE_OR_END
        elif character in "}]":
            self._end_container(character)
        elif character in ":,":
            self._separator(character)
        elif self._want in (_Want.VALUE, _Want.VALUE_OR_END) and character in "-0123456789tfn":
            self._want = _Want.ATOM
            return pos
        else:
            raise NotACall
        self._out.append(character)
        return pos + 1

    def _begin_string(self) -> None:
        if self._want is _Want.COMMA_OR_END:
            raise NotACall
        self._string_is_key = self._want in (_Want.KEY, _Want.KEY_OR_END)
        self._want = _Want.STRING

    def _end_container(self, character: str) -> None:
        ends = (_Want.COMMA_OR_END, _Want.KEY_OR_END, _Want.VALUE_OR_END)
        if self._want not in ends or not self._open or self._open[-1] + character not in "{}[]":
            raise NotACall
        self._open.pop()
        self._value_done()

    def _separator(self, character: str) -> None:
        wanted = _Want.COLON if character == ":" else _Want.COMMA_OR_END
        if self._want is not wanted:
            raise NotACall
        in_object = self._open[-1] == "{"
        self._want = _Want.KEY if character == "," and in_object else _Want.VALUE

    def _value_done(self) -> None:
        self._want = _Want.COMMA_OR_END if self._open else _Want.NOTHING

    def string(self, text: str, pos: int, end: int) -> int:
        plain = _PLAIN.match(text, pos, end)
        if plain:
            self._out.append(plain.group())
            return plain.end()
        character = text[pos]
        if character == '"':
            self._out.append(character)
            if self._string_is_key:
                self._want = _Want.COLON
            else:
                self._value_done()
        elif character == "\\":
            self._out.append(character)
            self._want = _Want.ESCAPE
        else:
            self._out.append(json.dumps(character)[1:-1])
        return pos + 1

    def escape(self, text: str, pos: int, _end: int) -> int:
        character = text[pos]
        if character not in '"\\/bfnrtu':
            raise NotACall
        self._out.append(character)
        self._hex_left = 4
        self._want = _Want.HEX if character == "u" else _Want.STRING
        return pos + 1

    def hexadecimal(self, text: str, pos: int, _end: int) -> int:
        if not _HEX.match(text, pos):
            raise NotACall
        self._out.append(text[pos])
        self._hex_left -= 1
        if not self._hex_left:
            self._want = _Want.STRING
        return pos + 1

    def atom(self, text: str, pos: int, end: int) -> int:
        part = _ATOM.match(text, pos, end)
        if part:
            self._atom += part.group()
            return part.end()
        if not _WHOLE_ATOM.fullmatch(self._atom):
            raise NotACall
        self._out.append(self._atom)
        self._atom = ""
        self._value_done()
        return pos


_STEPS: Mapping[_Want, Callable[[JsonScan, str, int, int], int]] = {
    _Want.STRING: JsonScan.string,
    _Want.ESCAPE: JsonScan.escape,
    _Want.HEX: JsonScan.hexadecimal,
    _Want.ATOM: JsonScan.atom,
}


def read_json(source: Source, sink: Callable[[str], None]) -> Read[None]:
    """Reads one value from here on and gives `sink` its text as it comes, up to any error."""
    scan = JsonScan()
    while True:
        source.pos = scan.advance(source.text, source.pos, source.end)
        if text := scan.take():
            sink(text)
        if scan.done:
            return
        if scan.broken:
            raise NotACall
        yield from source.more()


def read_json_text(source: Source) -> Read[str]:
    """Reads one value from here on and returns its text."""
    pieces: list[str] = []
    yield from read_json(source, pieces.append)
    return "".join(pieces)


def load(text: str) -> object:
    """`json.loads` without the constants that are not JSON. Raises `ValueError`."""
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def dump(value: object) -> str:
    """`value` as JSON text that can be encoded: lone surrogates stay escaped.

    Raises `ValueError` for what JSON cannot say: infinity, not a number, nesting without end.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return json.dumps(value, allow_nan=False) if _SURROGATE.search(text) else text


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
