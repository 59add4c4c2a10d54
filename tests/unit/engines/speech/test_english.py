"""English without spaCy: phonemes that Kokoro knows, and nothing left in the temporary folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from engines.speech.model import mono

PROGRAM = """
import importlib, os, sys
from engines.speech import english
english.install()
english.install()
made = importlib.import_module("misaki.en").G2P
assert made is english.EspeakEnglish
text, tokens = made(trf=False, british=False, fallback=None, unk="")("Hello, world!")
assert "".join(token.phonemes + token.whitespace for token in tokens).strip() == text
sys.stdout.write(text)
sys.stdout.flush()
os._exit(0)
"""


def test_a_text_becomes_phonemes_and_no_file_is_left(tmp_path: Path) -> None:
    """In a process of its own, which ends as an engine does."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"TMPDIR": str(tmp_path), "PATH": "", "PYTHONUTF8": "1"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == "həlˈO, wˈɜɹld!"  # noqa: RUF001  the phonetic alphabet
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(6,), (1, 6), (6, 1), (1, 1, 6), (2, 6), (6, 2)], ids=str)
def test_sound_of_any_shape_becomes_one_channel(shape: tuple[int, ...]) -> None:
    sound = mono(mx.full(shape, 0.5, dtype=mx.bfloat16))
    np.testing.assert_array_equal(sound, np.full(6, 0.5, np.float32))
