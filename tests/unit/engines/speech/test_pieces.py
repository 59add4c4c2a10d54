"""What is decided before anything is spoken: pieces of text, voices, languages, phrases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import EngineError
from engines.speech.english import phrases_of
from engines.speech.languages import KOKORO, kokoro_letter, kokoro_package
from engines.speech.sentences import MOST_CHARS, pieces_of
from engines.speech.voices import chosen, default_voice, voices_of
from gateway.registry.voices import voices_in

PIECES: Sequence[tuple[str, list[str]]] = [
    ("", []),
    (" \n\t ", []),
    ("Hello.", ["Hello."]),
    ("One. Two. Three.", ["One.", "Two. Three."]),
    ("First line\nsecond line\n\nlast", ["First line", "second line last"]),
    (
        "Dr. Smith met J. Doe at 3.14 p.m. today. Then?",
        ["Dr. Smith met J. Doe at 3.14 p.m. today.", "Then?"],
    ),
    ('"Stop!" he said. Fine.', ['"Stop!" he said.', "Fine."]),
    ("今日は。元気です。", ["今日は。", "元気です。"]),
]


@pytest.mark.parametrize(("text", "pieces"), PIECES, ids=[text[:12] for text, _ in PIECES])
def test_pieces(text: str, pieces: list[str]) -> None:
    assert pieces_of(text) == pieces


def test_a_long_sentence_is_cut_at_its_clauses() -> None:
    clause = "and so it goes on for quite a while,"
    pieces = pieces_of(" ".join([clause] * 20))
    assert len(pieces) > 1
    assert all(len(piece) <= MOST_CHARS and piece.endswith(",") for piece in pieces)


@given(st.text(alphabet="ab .,!?;\n。、", max_size=1500))
def test_no_piece_is_empty_or_too_long_and_nothing_is_lost(text: str) -> None:
    pieces = pieces_of(text)
    assert all(piece.strip() and len(piece) <= MOST_CHARS for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text", ["a" + " " * 16_000 + "b", "a. " + " " * 16_000 + "b", "A. " * 5400, "(Mr. " * 3200]
)
def test_no_text_takes_long_to_cut(text: str) -> None:
    """All calls wait meanwhile. By the CPU's clock, and far above what it takes (0.03 s)."""
    began = time.process_time()
    pieces_of(text)
    assert time.process_time() - began < 1.5


# --- voices ---------------------------------------------------------------------------------------


class Model:
    """As mlx-audio's models are, for what is asked of one."""

    def __init__(self, speakers: list[str] | None = None) -> None:
        if speakers is not None:
            self.get_supported_speakers = lambda: speakers

    def generate(self, text: str, voice: str = "own") -> None:
        raise AssertionError("nothing is spoken here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "voices").mkdir()
    for name in ("zoe", "adam"):
        (tmp_path / "voices" / f"{name}.safetensors").touch()
    np.savez(tmp_path / "voices.npz", one=np.zeros(1), adam=np.zeros(1))
    return tmp_path


def test_voices_come_from_the_folder_and_from_the_model(folder: Path) -> None:
    assert voices_of(Model(["vera", "zoe"]), folder) == ("adam", "zoe", "one", "vera")
    assert voices_in(folder) == ("adam", "zoe", "one")


def test_a_folder_without_voices(tmp_path: Path) -> None:
    assert voices_of(Model(), tmp_path) == ()
    assert voices_in(tmp_path / "missing") == ()
    (tmp_path / "voices.npz").write_bytes(b"no archive")
    assert voices_in(tmp_path) == ()


def test_the_default_is_the_models_own_or_the_first() -> None:
    assert default_voice(Model(), ("adam", "own")) == "own"
    assert default_voice(Model(), ("adam", "zoe")) == "adam"
    assert default_voice(Model(), ()) is None


@pytest.mark.parametrize(
    ("asked", "got"),
    [(None, "zoe"), ("default", "zoe"), ("adam", "adam"), ("adam,zoe", "adam,zoe")],
)
def test_a_voice_that_is_there(asked: str | None, got: str) -> None:
    assert chosen(asked, ("adam", "zoe"), "zoe") == got


@pytest.mark.parametrize("asked", ["eve", "adam,eve", "", "../adam.safetensors", "Adam"])
def test_a_voice_that_is_not_there_names_some_that_are(asked: str) -> None:
    with pytest.raises(EngineError, match="this model has adam, zoe") as caught:
        chosen(asked, ("adam", "zoe"), "zoe")
    assert caught.value.code == "invalid_request"


def test_a_model_without_voices_takes_no_name() -> None:
    assert chosen("default", (), None) is None
    with pytest.raises(EngineError, match="no named voices"):
        chosen("adam", (), None)


# --- languages ------------------------------------------------------------------------------------

LETTERS = [
    ("en", "jf_alpha", "hello", "a"),
    ("EN_GB", "af_heart", "hello", "b"),
    ("f", "af_heart", "bonjour", "f"),
    (None, "ff_siwis", "bonjour", "f"),
    (None, "bf_emma", "hello", "b"),
    (None, "jf_alpha", "hello", "a"),
    (None, "jf_alpha", "こんにちは", "j"),
    (None, "zf_xiaobei", "你好", "z"),
    (None, "narrator", "hello", "a"),
    (None, "", "hello", "a"),
]


@pytest.mark.parametrize(("language", "voice", "text", "letter"), LETTERS)
def test_the_language_is_asked_for_or_the_voices_own(
    language: str | None, voice: str, text: str, letter: str
) -> None:
    assert kokoro_letter(language, voice, text) == letter


def test_an_unknown_language_names_those_there_are() -> None:
    with pytest.raises(EngineError, match="en, en-gb, es, fr"):
        kokoro_letter("klingon", "af_heart", "nuqneH")


def test_every_language_says_what_to_install() -> None:
    packages = {letter: kokoro_package(letter) for letter in KOKORO}
    assert packages["j"] == "misaki[ja]"
    assert set(packages.values()) == {"mlx-gateway[speech]", "misaki[ja]", "misaki[zh]"}


PHRASES = [
    ("Hello, world!", [("Hello", ","), ("world", "!")]),
    ("no end", [("no end", "")]),
    ("10,000 times 3.5 at 12:30.", [("10000 times 3 point 5 at 12 30", ".")]),
    ("It costs $1,250.50, he said.", [("It costs 1250 point 50 dollars", ","), ("he said", ".")]),
    ('He said "yes" (twice) — twice?', [("He said yes twice", "—"), ("twice", "?")]),
    ("don't stop-gap", [("don't stop-gap", "")]),
    ("... !", []),
]


@pytest.mark.parametrize(("text", "phrases"), PHRASES)
def test_english_is_cut_at_its_pauses(text: str, phrases: list[tuple[str, str]]) -> None:
    assert phrases_of(text) == phrases
