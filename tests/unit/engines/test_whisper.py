"""Whisper's windows, over a model that says what it is told to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines import wire
from engines.base import EngineError
from engines.transcription.audio import RATE, Audio
from engines.transcription.decoders import Samples
from engines.transcription.pieces import Piece
from engines.transcription.whisper import TEMPERATURES, WhisperRun, cut

FIRST = 100
"""The timestamp of 0 s. Tokens below `EOT` are letters."""
EOT = 90


def at(seconds: float) -> int:
    return FIRST + round(seconds / 0.02)


# --- where a window is cut ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "segments", "used"),
    [
        # nothing but text: all of the window
        ([1, 2], [([1, 2], 0, 3000)], 3000),
        # one segment that ends where the window does
        ([at(0), 1, at(30)], [([at(0), 1, at(30)], 0, 3000)], 3000),
        # one segment, and nothing said after it
        ([at(0), 1, at(6)], [([at(0), 1, at(6)], 0, 600)], 3000),
        # two complete segments, and a third that is not
        (
            [at(0), 1, at(4), at(4), 2, at(9.5), at(9.5), 3],
            [([at(0), 1, at(4)], 0, 400), ([at(4), 2, at(9.5)], 400, 950)],
            950,
        ),
        # the last one is complete too
        (
            [at(0), 1, at(4), at(5), 2, at(9)],
            [([at(0), 1, at(4)], 0, 400), ([at(5), 2, at(9)], 500, 900)],
            3000,
        ),
        ([at(0)], [([at(0)], 0, 3000)], 3000),
        ([], [([], 0, 3000)], 3000),
    ],
)
def test_cuts(tokens: list[int], segments: list[Any], used: int) -> None:
    assert cut(np.array(tokens, np.int64), FIRST, 3000) == (segments, used)


def test_a_timestamp_behind_the_end_uses_no_more_than_there_is() -> None:
    _, used = cut(np.array([at(0), 1, at(9), at(9), 2], np.int64), FIRST, 500)
    assert used == 500


# --- a whole call ---------------------------------------------------------------------------------


class Tone:
    """Sound of `seconds`, and none where `silent` says so."""

    total_s: float | None = None

    def __init__(self, seconds: float, silent: slice = slice(0, 0)) -> None:
        samples = np.sin(np.arange(round(seconds * RATE), dtype=np.float32))
        samples[silent] = 0
        self._pieces = iter([samples])

    def read(self) -> Samples | None:
        return next(self._pieces, None)

    def close(self) -> None: ...


class Tokenizer:
    timestamp_begin, eot = FIRST, EOT

    def encode(self, text: str) -> list[int]:
        return [95, *(ord(letter) - 96 for letter in text if letter.isalpha())]

    def decode(self, tokens: list[int]) -> str:
        return " " + "".join(chr(96 + token) for token in tokens) if tokens else ""


def result(*tokens: int, **fields: float) -> SimpleNamespace:
    plain = {"avg_logprob": -0.3, "no_speech_prob": 0.0, "compression_ratio": 1.0}
    return SimpleNamespace(tokens=list(tokens), **plain | fields)


class Model:
    """Gives these results, one for each decoding, and notes how it was asked."""

    dims = SimpleNamespace(n_mels=80, n_text_ctx=20)
    dtype = mx.float32
    is_multilingual = True
    num_languages = 99

    def __init__(self, *results: SimpleNamespace) -> None:
        self.results = list(results)
        self.asked: list[Any] = []
        self.encoded = 0
        self.detected = 0

    def encoder(self, mel: Any) -> Any:
        assert mel.shape == (1, 3000, 80)
        self.encoded += 1
        return mx.zeros((1, 2, 2))

    def detect_language(self, features: Any) -> tuple[Any, list[dict[str, float]]]:
        self.detected += 1
        return None, [{"en": 0.1, "fr": 0.8, "de": 0.1}]

    def decode(self, features: Any, options: Any) -> list[SimpleNamespace]:
        self.asked.append(options)
        given = self.results.pop(0)
        given.temperature = options.temperature
        return [given]

    def get_tokenizer(self, **kwargs: Any) -> Tokenizer:
        return Tokenizer()


AUDIO = wire.Media("audio", "", "audio/wav", 0, "")


def run(model: Model, sound: Tone, **fields: Any) -> tuple[list[Piece], WhisperRun]:
    call = WhisperRun(model, wire.Transcribe(1, AUDIO, **fields), Audio(sound, RATE))
    pieces: list[Piece] = []
    for _ in range(100):
        if call.over:
            return pieces, call
        pieces += call.step()
    raise AssertionError("it never came to an end")


def test_the_next_window_begins_where_the_last_segment_ends() -> None:
    model = Model(
        result(at(0), 1, at(12), at(12), 2, at(25), at(25), 3),
        result(at(0), 3, at(4)),
        result(at(0), 4, at(2)),
    )
    pieces, call = run(model, Tone(50))
    said = [(piece.text, round(piece.start_s, 2), round(piece.end_s, 2)) for piece in pieces]
    assert said == [(" a", 0, 12), (" b", 12, 25), (" c", 25, 29)]
    assert (call.language, call.tokens, model.encoded, model.detected) == ("fr", 11, 2, 1)
    first, second = model.asked
    assert (first.language, first.task, first.fp16, first.prompt) == ("fr", "transcribe", False, [])
    assert second.prompt == [at(0), 1, at(12), at(12), 2, at(25)][-9:]


def test_it_tries_again_at_higher_temperatures_and_encodes_once() -> None:
    model = Model(
        result(at(0), 1, at(2), avg_logprob=-1.5),
        result(at(0), 1, 1, 1, at(2), compression_ratio=3),
        result(at(0), 2, at(2)),
    )
    (piece,), _ = run(model, Tone(2))
    assert (piece.text, piece.temperature) == (" b", 0.4)
    assert [options.temperature for options in model.asked] == [0.0, 0.2, 0.4]
    assert model.encoded == 1


def test_the_last_temperature_counts_whatever_it_gives() -> None:
    model = Model(*(result(at(0), 1, at(2), avg_logprob=-1.5) for _ in TEMPERATURES))
    (piece,), _ = run(model, Tone(2))
    assert piece.temperature == 1.0


def test_a_temperature_asked_for_is_the_only_one() -> None:
    model = Model(result(at(0), 1, at(2), avg_logprob=-1.5))
    run(model, Tone(2), temperature=0.3)
    assert [options.temperature for options in model.asked] == [0.3]


def test_a_text_drawn_at_a_high_temperature_is_no_prompt() -> None:
    low = [result(at(0), 1, at(1), avg_logprob=-2) for _ in range(3)]
    model = Model(*low, result(at(0), 1, at(30)), result(at(0), 2, at(4)))
    run(model, Tone(34), prompt="hi")
    assert [options.prompt for options in model.asked] == [[8, 9]] * 4 + [[]]
    assert model.asked[3].temperature > 0.5


def test_no_speech_is_no_text() -> None:
    model = Model(result(1, 2, avg_logprob=-1.5, no_speech_prob=0.9))
    assert run(model, Tone(3))[0] == []
    assert len(model.asked) == 1


def test_silent_windows_are_not_looked_at() -> None:
    model = Model(result(at(0), 1, at(1)))
    (piece,), call = run(model, Tone(65, silent=slice(0, 60 * RATE)))
    assert (piece.start_s, piece.end_s) == (60, 61)
    assert (model.encoded, call.over) == (1, True)


def test_times_end_with_the_audio_and_empty_segments_go() -> None:
    model = Model(result(at(0), 1, at(1), at(1), at(2), at(2), 2, at(30)))
    pieces, _ = run(model, Tone(3))
    assert [(piece.text, piece.end_s) for piece in pieces] == [(" a", 1), (" b", 3)]


def test_it_always_moves_forward() -> None:
    model = Model(result(at(0), at(0), 1), result(at(0), 1, at(2)))
    run(model, Tone(32))
    assert len(model.asked) == 2


def test_the_prompt_and_the_task() -> None:
    model = Model(result(at(0), 1, at(2)))
    run(model, Tone(2), prompt="ab", translate=True, language="german")
    (options,) = model.asked
    assert (options.prompt, options.task, options.language) == ([1, 2], "translate", "de")
    assert model.detected == 0


@pytest.mark.parametrize(
    ("multilingual", "fields", "code"),
    [
        (True, {"language": "klingon"}, "invalid_request"),
        (True, {"language": "xx"}, "invalid_request"),
        (False, {"language": "fr"}, "unsupported"),
        (False, {"translate": True}, "unsupported"),
    ],
)
def test_languages_it_does_not_know(multilingual: bool, fields: dict[str, Any], code: str) -> None:
    model = Model()
    model.is_multilingual = multilingual
    with pytest.raises(EngineError) as error:
        run(model, Tone(1), **fields)
    assert error.value.code == code


def test_an_english_model_needs_no_language() -> None:
    model = Model(result(at(0), 1, at(2)))
    model.is_multilingual = False
    assert run(model, Tone(2), language="English")[1].language == "en"
