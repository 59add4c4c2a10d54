"""English phonemes for Kokoro from espeak-ng alone.

misaki's own English needs spaCy and a model that it would download when it is first used. Where
these are not installed, `install` puts a module of the same name in its place, with the same
phoneme alphabet but without misaki's dictionary: a little less natural, and clear.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
from types import ModuleType
from typing import Any

_MODULE = "misaki.en"
_NEEDS = ("spacy", "en_core_web_sm")

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DECIMAL = re.compile(r"(?<=\d)\.(?=\d)")
_CLOCK = re.compile(r"(?<=\d):(?=\d\d(?!\d))")
_WORD = re.compile(r"(?P<before>[^\w$£€]*)(?P<word>.*?)(?P<after>[^\w%]*)$", re.DOTALL)

_MONEY = re.compile(r"([$£€])\s?(\d[\d,]*(?:\.\d+)?)")
_CURRENCIES = {"$": "dollars", "£": "pounds", "€": "euros"}

_SPOKEN_MARKS = frozenset(";:,.!?—…")
"""Punctuation that is heard, and that Kokoro's alphabet has. Source: its config.json."""


def install() -> None:
    """Makes `misaki.en` the one of this module, unless what it needs is there."""
    if _MODULE in sys.modules or importlib.util.find_spec("misaki") is None:
        return  # without it, whoever needs it says so
    if importlib.util.find_spec("phonemizer") is not None:
        leave_nothing_behind()
    if all(map(importlib.util.find_spec, _NEEDS)):
        return
    module = ModuleType(_MODULE)
    module.MToken = importlib.import_module("misaki.token").MToken  # type: ignore[attr-defined]
    module.G2P = EspeakEnglish  # type: ignore[attr-defined]
    sys.modules[_MODULE] = module


def leave_nothing_behind() -> None:
    """Has phonemizer remove its copy of the espeak-ng library as soon as that is loaded.

    It would do so when Python ends in order, which an engine process never does.
    """
    api: Any = importlib.import_module("phonemizer.backend.espeak.api").EspeakAPI
    load = api.__init__

    def load_and_remove(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        shutil.rmtree(self._tempdir, ignore_errors=True)

    api.__init__ = load_and_remove
    api._delete = staticmethod(lambda library, folder: None)


class EspeakEnglish:
    """Stands in for `misaki.en.G2P`: called with a text, it gives its phonemes and tokens."""

    def __init__(
        self, *, trf: bool = False, british: bool = False, fallback: Any = None, unk: str = ""
    ) -> None:
        espeak = importlib.import_module("misaki.espeak")
        self._phonemes = fallback or espeak.EspeakFallback(british=british)
        self._token = importlib.import_module("misaki.token").MToken

    def __call__(self, text: str) -> tuple[str, list[Any]]:
        tokens: list[Any] = []
        for phrase, marks in phrases_of(text):
            spoken = self._phonemes(self._token(text=phrase, tag="", whitespace=" "))[0] or ""
            words = [self._made(word) for word in spoken.split()]
            if words and marks:
                words[-1].whitespace = ""
            tokens += words
            if marks:
                tokens.append(self._made(marks))
        return "".join(t.phonemes + t.whitespace for t in tokens).strip(), tokens

    def _made(self, phonemes: str) -> Any:
        return self._token(text=phonemes, tag="", whitespace=" ", phonemes=phonemes)


def phrases_of(text: str) -> list[tuple[str, str]]:
    """Words up to the next pause, and the marks that make it.

    espeak-ng is asked phrase by phrase, so that words sound as they do among others. Numbers are
    made fit for it first, as its caller cuts at every mark.
    """
    text = _MONEY.sub(lambda found: f"{found[2]} {_CURRENCIES[found[1]]}", text)
    text = _THOUSANDS.sub("", text)
    text = _DECIMAL.sub(" point ", text)
    text = _CLOCK.sub(" ", text)
    phrases: list[tuple[str, str]] = []
    words: list[str] = []
    for piece in text.replace("—", " — ").split():
        match = _WORD.match(piece)
        assert match is not None  # it matches everything
        if match["word"]:
            words.append(match["word"])
        marks = "".join(mark for mark in match["after"] if mark in _SPOKEN_MARKS)
        if not match["word"]:
            marks = "".join(mark for mark in piece if mark in _SPOKEN_MARKS)
        if marks and words:
            phrases.append((" ".join(words), marks))
            words = []
    if words:
        phrases.append((" ".join(words), ""))
    return phrases
