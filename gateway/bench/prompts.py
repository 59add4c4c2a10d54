"""Prompts of a sweep: the same text for the same seed and number, so that runs compare."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = {"short": 24, "medium": 384, "long": 2_048}
"""Words by the name of the set; a word is about 1.3 tokens."""

MAX_FILE_BYTES = 4 * 2**20

# fmt: off
_VOCABULARY = (
    "river", "mountain", "window", "paper", "garden", "engine", "letter", "winter", "bridge",
    "market", "silver", "music", "harbour", "forest", "candle", "journey", "station", "kitchen",
    "painter", "shadow", "morning", "library", "ocean", "signal", "number", "question", "answer",
    "reason", "pattern", "circle", "colour", "moment", "story",
)
# fmt: on


class BadPrompts(Exception):
    """A prompt set cannot be had; the message says why."""


def prompt(name: str, number: int, seed: int) -> str:
    """The prompt with this number of a set, each another one, so that no cache has it whole.

    `name` is one of `WORDS`, or a text file, whose content gets the number in front.
    Raises `BadPrompts`.
    """
    if name in WORDS:
        dice = random.Random(f"{seed} {name} {number}")
        words = " ".join(dice.choices(_VOCABULARY, k=WORDS[name]))
        return f"Request {seed}-{number}. Continue this list of words: {words}"
    try:
        with Path(name).open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        sets = ", ".join(WORDS)
        raise BadPrompts(f"{name!r} is none of {sets}, and no text file: {error}") from error
    return f"Request {seed}-{number}.\n{text}"
