"""The search for markers in flowing text, with hold-back.

Nothing is held back but what may still become a marker: `open_from` is the start of the longest
such tail. Where a marker is a special token of the tokenizer and the feeder tells tokens from
text, only the token counts: such a marker arrives whole, and nothing waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from engines.parsers.source import Source


class Markers:
    """Finds the first of `texts` in a source. No marker may be the beginning of another one."""

    def __init__(self, texts: Collection[str], special_tokens: Collection[str] = ()) -> None:
        self._all = _Table(texts)
        self._tokens = frozenset(texts) & frozenset(special_tokens)
        self._spelled = _Table(frozenset(texts) - self._tokens) if self._tokens else self._all

    def find(self, source: Source, start: int) -> tuple[int, str] | None:
        """Index and text of the first marker at or after `start`."""
        if not source.strict or not self._tokens:
            return self._all.find(source.text, start)
        found = self._spelled.find(source.text, start)
        for at, end in source.spans.items():
            if at >= start and source.text[at:end] in self._tokens:
                return (at, source.text[at:end]) if found is None or at < found[0] else found
        return found

    def open_from(self, source: Source, start: int) -> int:
        """Where the text that may still become a marker begins; the length of the text if none."""
        table = self._spelled if source.strict else self._all
        return table.open_from(source.text, start)


class _Table:
    def __init__(self, texts: Collection[str]) -> None:
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if texts else None
        self._prefixes = {text[:length] for text in texts for length in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)
        firsts = "".join(sorted({re.escape(text[0]) for text in texts}))
        self._first = re.compile(f"[{firsts}]") if texts else None

    def find(self, text: str, start: int) -> tuple[int, str] | None:
        found = self._pattern.search(text, start) if self._pattern else None
        return (found.start(), found.group()) if found else None

    def open_from(self, text: str, start: int) -> int:
        if self._first is None:
            return len(text)
        start = max(start, len(text) - self._longest + 1)
        for first in self._first.finditer(text, start):
            if text[first.start() :] in self._prefixes:
                return first.start()
        return len(text)
