"""In which language a model is told to speak.

Most models take a language as it is. Kokoro has a letter for each, needs other packages for some,
and its voices are named after theirs.
"""

from __future__ import annotations

import re

from engines.base import EngineError

PARAMETERS = ("lang_code", "language", "lang")
"""What the argument is called, by model."""

KOKORO = {
    "a": ("en", "en-us"),
    "b": ("en-gb", "en-uk"),
    "e": ("es",),
    "f": ("fr", "fr-fr"),
    "h": ("hi",),
    "i": ("it",),
    "j": ("ja",),
    "p": ("pt", "pt-br"),
    "z": ("zh", "zh-cn", "cmn"),
}
"""Kokoro's letter for each language code. Source: hexgrad's Kokoro and mlx-audio's pipeline."""

_PACKAGES = {"j": "misaki[ja]", "z": "misaki[zh]"}
_EAST_ASIAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def kokoro_letter(language: str | None, voice: str, text: str) -> str:
    """Kokoro's letter for a request; without a language it is the voice's own.

    A Japanese or Chinese voice that is given not one character of its script reads English: its
    own phonemes cannot tell Latin letters. Raises `EngineError` for a language it does not have.
    """
    if language is not None:
        wanted = language.lower().replace("_", "-")
        for letter, codes in KOKORO.items():
            if wanted in (letter, *codes):
                return letter
        known = ", ".join(codes[0] for codes in KOKORO.values())
        raise EngineError(
            "invalid_request", f"language: there is no {language[:100]!r}; this model has {known}"
        )
    letter = voice[:1]
    if letter not in KOKORO or (letter in "jz" and not _EAST_ASIAN.search(text)):
        return "a"
    return letter


def kokoro_package(letter: str) -> str:
    """What has to be installed for a language, as pip takes it."""
    return _PACKAGES.get(letter, "mlx-gateway[speech]")
