"""Grammars in llguidance's dialect of Lark, built piece by piece. Pure text.

Every method returns an expression to be put into a rule. Added tokens of the tokenizer stand in a
grammar by their id, `<[7]>`: the matcher never takes them for their spelling.
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

STYLE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""How JSON is written: on one line, as `json.dumps` does with or without its spaces. Free white
space lets small models write blanks for ever."""


def pattern(text: str) -> str:
    """A regular expression that matches `text`, for use between slashes."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character == "\n":
        return r"\n"
    # The engine behind it gives `\<` and `\>` a meaning, and none to escaped letters.
    plain = character.isalnum() or not character.isascii() or character in "_<> =\"'"
    return character if plain else f"\\{character}"


class End(NamedTuple):
    """The tag that ends a text, and the white space around it."""

    tag: str
    before: str = ""
    behind: str = ""

    def __str__(self) -> str:
        return self.before + self.tag + self.behind


class Lark:
    """One grammar. `tokens` are the tokenizer's added tokens by spelling."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        self._names: dict[tuple[str, str], str] = {}
        longest_first = sorted((text for text in tokens if text.strip()), key=len, reverse=True)
        self._split = re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    def finish(self, start: str) -> str:
        """The text of the grammar whose answers `start` describes."""
        rules = (f"{name}: {body}" for (_, body), name in self._names.items())
        return "\n".join([f"start: {start}", *rules]) + "\n"

    def markup(self, text: str) -> str:
        """Text of the format itself, in which added tokens are tokens."""
        pieces = filter(None, self._split.split(text))
        return " ".join(self._token(piece) or self.plain(piece) for piece in pieces)

    def plain(self, text: str) -> str:
        """Text of the request's, whatever it spells."""
        return json.dumps(text, ensure_ascii=False)

    def json(self, schema: Mapping[str, Any] | bool, **options: Any) -> str:
        """JSON under `schema`; `options` are llguidance's beside `STYLE`."""
        given = {"not": {}} if schema is False else {} if schema is True else schema
        told = {**given, "x-guidance": STYLE | options}
        return self.rule(f"%json {json.dumps(told, ensure_ascii=False)}")

    def regex(self, expression: str) -> str:
        """What matches `expression`, which is fit to stand between slashes."""
        return self.terminal(f"/{expression}/")

    def either(self, choices: Sequence[str]) -> str:
        return self.rule(" | ".join(choices))

    def rule(self, body: str) -> str:
        return self._named("rule", body)

    def terminal(self, body: str) -> str:
        return self._named("TEXT", body)

    def text_before(self, end: End, banned: Collection[str], also: Sequence[str] = ()) -> str:
        """Any text without a tag of `banned` in it, up to and with its `end`.

        `also` are expressions that the text has to match as well.
        """
        unwanted = "|".join(pattern(text) for text in sorted({end.tag, *banned}))
        apart = f"~/(?s:.*)(?:{unwanted})(?s:.*)/"
        text = " & ".join(["/(?s:.*)/", apart, *(f"/{expression}/" for expression in also)])
        token = self._token(end.tag)
        if token is None:
            # In one piece: a text is read greedily, and the tag must not be taken for more of it.
            return self.terminal(f"({text}) {self.plain(str(end))}")
        if end.before:
            text = f"({text}) {self.plain(end.before)}"
        behind = f" {self.plain(end.behind)}" if end.behind else ""
        return f"{self.terminal(text)} {token}{behind}"

    def _token(self, text: str) -> str | None:
        found = self._tokens.get(text)
        return None if found is None else f"<[{found}]>"

    def _named(self, kind: str, body: str) -> str:
        # Tools have many arguments of the same kind, and each rule costs time to compile.
        name = self._names.get((kind, body))
        if name is None:
            name = self._names[kind, body] = f"{kind}_{len(self._names)}"
        return name
