"""The text of one generation as readers see it: fed in pieces, read as if it were all there.

A reader is a generator: it yields where it needs more text and goes on when there is more. It
decides only what no further text can change, so its result does not depend on the cuts.

Indices into `text` stay valid until `trim`, which only the owner of the source calls, and never
while a reader is at work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from typing import Protocol, TypeVar

_T = TypeVar("_T")
Read = Generator[None, None, _T]
"""A reader with a result of type `_T`; every `yield` waits for more text."""

SPACE = re.compile(r"\s*")
NAME = re.compile(r"[\w.\-:/]*")
"""What names of tools are made of."""


class NotACall(Exception):
    """What follows a marker is no call, so it is shown as text."""


class EndOfText(NotACall):
    """The text ended inside of what may have been a call."""


class Fence(Protocol):
    """Finds the place beyond which a reader may not look; `scanner.Markers` is one."""

    def find(self, source: Source, start: int) -> tuple[int, str] | None: ...

    def open_from(self, source: Source, start: int) -> int: ...


class Source:
    """`text` with the next unread character at `pos`; readers look no further than `end`.

    `closed` means that nothing will come after `end`; `natural` that the model chose to stop there.
    `strict` is true once the feeder has said of a piece whether it was a special token: from then
    on the spelling of a special token is a marker only where that token stood.
    """

    def __init__(self, special_tokens: Collection[str] = ()) -> None:
        self.text = ""
        self.pos = 0
        self.end = 0
        self.closed = False
        self.natural = False
        self.strict = False
        self.special_tokens = frozenset(special_tokens)
        self.spans: dict[int, int] = {}
        """Where special tokens stand: the end of each by its start, in order."""
        self._ended = False
        self._stopped = False
        self._fence: Fence | None = None
        self._fence_from = 0

    def feed(self, text: str, special: bool | None) -> None:
        if special is not None:
            self.strict = True
            if special and text:
                self.spans[len(self.text)] = len(self.text) + len(text)
        self.text += text
        self._update()

    def close(self, *, natural: bool) -> None:
        self._ended, self._stopped = True, natural
        self._update()

    def fence(self, fence: Fence | None) -> None:
        """Readers see nothing from the first place that `fence` finds after `pos`; None opens."""
        self._fence, self._fence_from = fence, self.pos
        self._update()

    def trim(self, keep_from: int) -> int:
        """Forgets the text before `keep_from`. Returns by how much every index shrinks."""
        if keep_from:
            self.text = self.text[keep_from:]
            self.pos = max(0, self.pos - keep_from)
            if self.spans:
                self.spans = {
                    start - keep_from: end - keep_from
                    for start, end in self.spans.items()
                    if start >= keep_from
                }
            self._update()
        return keep_from

    def _update(self) -> None:
        self.end, self.closed = len(self.text), self._ended
        self.natural = self._ended and self._stopped
        if self._fence is None:
            return
        found = self._fence.find(self, self._fence_from)
        if found is not None:
            self.end, self.closed, self.natural = found[0], True, False
        elif not self._ended:
            self.end = self._fence_from = self._fence.open_from(self, self._fence_from)

    def visible(self, start: int, end: int) -> str:
        """The text from `start` to `end` without the special tokens in it."""
        inside = [at for at in self.spans if start <= at < end]
        if not inside:
            return self.text[start:end]
        pieces = []
        for at in inside:
            pieces.append(self.text[start:at])
            start = self.spans[at]
        pieces.append(self.text[start:end])
        return "".join(pieces)

    def stands(self, literal: str, at: int) -> bool:
        """Whether `literal` is what the model wrote at `at`, as a token where it is one."""
        if not self.text.startswith(literal, at, self.end):
            return False
        return not self.needs_token(literal) or self.spans.get(at) == at + len(literal)

    def needs_token(self, literal: str) -> bool:
        return self.strict and literal in self.special_tokens

    def may_stand(self, literal: str, at: int) -> bool:
        """Whether `literal` could still come to stand at `at`."""
        if self.closed or self.end - at >= len(literal):
            return False
        if self.needs_token(literal):
            return at == self.end
        return literal.startswith(self.text[at : self.end])

    # --- readers ------------------------------------------------------------------------------

    def more(self) -> Read[None]:
        """Waits for text. Raises `EndOfText` where none will come."""
        if self.closed:
            raise EndOfText
        yield

    def peek(self) -> Read[str]:
        """The next character, still unread, or "" at the end of the text."""
        while self.pos >= self.end:
            if self.closed:
                return ""
            yield
        return self.text[self.pos]

    def run(self, characters: re.Pattern[str]) -> Read[str]:
        """Reads on while `characters`, a pattern like `[a-z]*`, matches."""
        start = self.pos
        while True:
            found = characters.match(self.text, self.pos, self.end)
            self.pos = found.end() if found else self.pos
            if self.pos < self.end or self.closed:
                return self.text[start : self.pos]
            yield

    def space(self) -> Read[str]:
        """Steps over white space. Returns the character behind it, or "" at the end."""
        yield from self.run(SPACE)
        return (yield from self.peek())

    def accept(self, *literals: str) -> Read[str]:
        """Steps over the longest of `literals` that stands here; returns it, or "" if none does."""
        while True:
            found = max((it for it in literals if self.stands(it, self.pos)), key=len, default="")
            if not any(len(it) > len(found) and self.may_stand(it, self.pos) for it in literals):
                self.pos += len(found)
                return found
            yield

    def accept_all(self, literals: tuple[str, ...]) -> Read[None]:
        """Steps over white space and any number of `literals`."""
        yield from self.space()
        while (yield from self.accept(*literals)):
            yield from self.space()

    def expect(self, *literals: str) -> Read[str]:
        """As `accept`, but one of them must stand here, or it is not a call."""
        found = yield from self.accept(*literals)
        if not found:
            raise EndOfText if self.closed and self.pos >= self.end else NotACall
        return found

    def at_end(self) -> bool:
        """Whether all was read that will ever come."""
        return self.closed and self.pos >= self.end
