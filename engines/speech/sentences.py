"""A text in pieces that are spoken one at a time: where a voice would pause anyway.

Pure. The first piece is one sentence, because somebody waits for it; later ones are joined up to
`MOST_CHARS`, which also keeps each within what models take at once (Kokoro: 510 phonemes).
"""

from __future__ import annotations

import re

MOST_CHARS = 160

# Clients send what they like, so none of these may take long over runs of white space.
_LINE_END = re.compile(r"[\r\n\u2028\u2029]+")
# The marks of several scripts, which resemble each other.
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+(?![a-z\s])|(?<=[。！？])[」』”]*")  # noqa: RUF001
_CLAUSE = re.compile(r"(?<=[,;:—–])\s+|(?<=[、，；：])")  # noqa: RUF001
_SPACE = re.compile(r"\s+")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|No|Fig)\.$"
)
_LOOK_BACK = 8
"""Characters in which an abbreviation is, with what is before it."""


def pieces_of(text: str) -> list[str]:
    """The pieces, none of them empty, in order; joined with spaces they are the text's words."""
    sentences = [
        part
        for line in _LINE_END.split(text)
        for sentence in _sentences(line.strip())
        for part in _parts(sentence)
    ]
    joined: list[str] = []
    for number, sentence in enumerate(sentences):
        if number > 1 and len(joined[-1]) + 1 + len(sentence) <= MOST_CHARS:
            joined[-1] = f"{joined[-1]} {sentence}"
        else:
            joined.append(sentence)
    return joined


def _sentences(line: str) -> list[str]:
    """Split where a sentence ends, and not after an abbreviation or before a small letter."""
    found: list[str] = []
    start = 0
    for match in _SENTENCE.finditer(line):
        if _ABBREVIATION.search(line[max(start, match.start() - _LOOK_BACK) : match.start()]):
            continue
        found.append(line[start : match.end()].strip())
        start = match.end()
    found.append(line[start:].strip())
    return [sentence for sentence in found if sentence]


def _parts(sentence: str) -> list[str]:
    """A sentence that is too long, cut at its clauses, else between words, else anywhere."""
    if len(sentence) <= MOST_CHARS:
        return [sentence]
    parts = _filled(_CLAUSE.split(sentence))
    words = [word for part in parts for word in (_SPACE.split(part) if _over(part) else [part])]
    return [
        part[at : at + MOST_CHARS]
        for part in _filled(words)
        for at in range(0, len(part), MOST_CHARS)
    ]


def _filled(pieces: list[str]) -> list[str]:
    """Neighbours joined as long as they stay within `MOST_CHARS`."""
    filled: list[str] = []
    for piece in filter(None, (piece.strip() for piece in pieces)):
        if filled and len(filled[-1]) + 1 + len(piece) <= MOST_CHARS:
            filled[-1] = f"{filled[-1]} {piece}"
        else:
            filled.append(piece)
    return filled


def _over(piece: str) -> bool:
    return len(piece) > MOST_CHARS
