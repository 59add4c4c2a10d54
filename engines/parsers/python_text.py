"""Calls and literals in Python syntax, read without the Python compiler.

Only what a call of a tool needs: `name(key=literal, ...)`, and literals made of strings, numbers,
lists, tuples, dictionaries, and the constants in their Python or JSON spelling.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from engines.parsers.json_text import load
from engines.parsers.source import NotACall, Read, Source

_MAX_DEPTH = 64
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_KEY = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d[\d_]*(\.(?!\d))?([eE][-+]?\d+)?")
_STRING = re.compile(r"""[rRuUbBfF]{0,2}("{3}|'{3}|"|')""")
_IN_STRING = re.compile(r"[^\"'\\]*")
_IN_CODE = re.compile(r"[^\[\](){}\"'\\]*")
_ESCAPE = re.compile(r"\\(\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_CONSTANTS = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}

Call = tuple[str, dict[str, object]]
"""The name of a tool and its arguments."""


def literal(text: str) -> object:
    """The value of one literal. Raises `ValueError` if `text` is anything else."""
    reader = _Reader(text)
    value = reader.value(0)
    reader.end()
    return value


def calls(text: str) -> list[Call]:
    """The calls in `[f(a=1), g()]`. Raises `ValueError` if `text` is anything else."""
    reader = _Reader(text)
    found: list[Call] = []
    reader.take("[")
    while not reader.took("]"):
        found.append(reader.call())
        if not reader.took(","):
            reader.take("]")
            break
    reader.end()
    return found


def call(text: str) -> Call:
    """The call in `f(a=1)`. Raises `ValueError` if `text` is anything else."""
    reader = _Reader(text)
    found = reader.call()
    reader.end()
    return found


class _Reader:
    """A recursive reader of one text that is there as a whole."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._pos)
        self._pos = found.end() if found else self._pos

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._space()
        found = pattern.match(self._text, self._pos)
        if found:
            self._pos = found.end()
        return found

    def took(self, literal: str) -> bool:
        self._space()
        if not self._text.startswith(literal, self._pos):
            return False
        self._pos += len(literal)
        return True

    def take(self, literal: str) -> None:
        if not self.took(literal):
            raise ValueError(f"{literal} expected at character {self._pos}")

    def end(self) -> None:
        self._space()
        if self._pos < len(self._text):
            raise ValueError(f"unexpected text at character {self._pos}")

    def call(self) -> Call:
        name = self._match(_NAME)
        if name is None:
            raise ValueError(f"a name expected at character {self._pos}")
        self.take("(")
        arguments: dict[str, object] = {}
        while not self.took(")"):
            key = self._match(_KEY)
            if key is None:
                raise ValueError(f"a named argument expected at character {self._pos}")
            self.take("=")
            arguments[key.group()] = self.value(0)
            if not self.took(","):
                self.take(")")
                break
        return name.group(), arguments

    def value(self, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        for opener, closer in (("[", "]"), ("(", ")")):
            if self.took(opener):
                return self._list(closer, depth)
        if self.took("{"):
            return self._dictionary(depth)
        if opener_of_string := self._match(_STRING):
            return self._strings(opener_of_string)
        if number := self._match(_NUMBER):
            return _number(number.group())
        constant = self._match(_KEY)
        if constant is None or constant.group() not in _CONSTANTS:
            raise ValueError(f"a literal expected at character {self._pos}")
        return _CONSTANTS[constant.group()]

    def _list(self, closer: str, depth: int) -> list[object]:
        values: list[object] = []
        while not self.took(closer):
            values.append(self.value(depth + 1))
            if not self.took(","):
                self.take(closer)
                break
        return values

    def _dictionary(self, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        while not self.took("}"):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise ValueError("keys must be strings")
            self.take(":")
            values[key] = self.value(depth + 1)
            if not self.took(","):
                self.take("}")
                break
        return values

    def _strings(self, opener: re.Match[str] | None) -> str:
        """Strings side by side are one string, as in Python."""
        pieces = []
        while opener:
            prefix, quote = opener.group()[: -len(opener.group(1))].lower(), opener.group(1)
            end = _end_of_string(self._text, self._pos, quote)
            if end < 0:
                raise ValueError("a string without its end")
            raw = self._text[self._pos : end]
            pieces.append(raw if "r" in prefix else _ESCAPE.sub(_unescape, raw))
            self._pos = end + len(quote)
            opener = self._match(_STRING)
        return "".join(pieces)


def _end_of_string(text: str, start: int, quote: str) -> int:
    """Index of the closing `quote`, or -1."""
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text.startswith(quote, at):
            return at
        else:
            at += 1
    return -1


def _unescape(found: re.Match[str]) -> str:
    code = found.group(1)
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16)) if int(code[1:], 16) <= 0x10FFFF else "\ufffd"
    if code == "\n":
        return ""
    return _ESCAPES.get(code, code if code in "\\'\"" else found.group())


def _number(text: str) -> object:
    plain = text.replace("_", "").removeprefix("+").rstrip(".")
    if plain.lstrip("-").startswith("."):
        plain = plain.replace(".", "0.", 1)
    return load(plain)


def read_brackets(source: Source) -> Read[str]:
    """Reads from an opening bracket to the one that closes it, strings respected."""
    start, depth, quote = source.pos, 0, ""
    while True:
        yield from source.run(_IN_STRING if quote else _IN_CODE)
        character = yield from source.peek()
        if not character:
            yield from source.more()
        if character in "\"'":
            if not quote:
                quote = character
            elif quote == character:
                quote = ""
        elif character == "\\" and quote:
            source.pos += 1
            if not (yield from source.peek()):
                yield from source.more()
        elif not quote:
            depth += (character in "([{") - (character in ")]}")
        source.pos += 1
        if not depth:
            return source.text[start : source.pos]


def parsed(text: str, parse: Callable[[str], list[Call]]) -> list[Call]:
    """`parse(text)`, where a text that does not parse is no call."""
    try:
        return parse(text)
    except ValueError as error:
        raise NotACall from error
