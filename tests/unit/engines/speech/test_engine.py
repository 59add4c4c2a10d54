"""The speech engine over a model that is none: turns, credit, cancel, failures, what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import psutil
import pytest

from engines import wire
from engines.base import Emitted, EngineError, LoadError, Report
from engines.speech import model as loading
from engines.speech.engine import SpeechEngine, pcm16
from engines.speech.model import LoadedSpeech
from tests.harness import audio

LIMITS = wire.Limits(2**30, 2**20, 0, 0, 2**20)
RATE = 24_000
PIECE_S = 2.0
MOST_STEPS = 5000


@dataclass
class Result:
    """As mlx-audio's `GenerationResult`, for what is read of one."""

    audio: Any
    token_count: int = 3


class FakeModel:
    """Speaks two chunks for every piece; what it was told is in `told`."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def generate(
        self, text: str, voice: str = "zoe", speed: float = 1.0, lang_code: str = "en"
    ) -> Iterator[Result]:
        self.told.append({"text": text, "voice": voice, "speed": speed, "lang": lang_code})
        if "silence" in text:
            return
        if "explode" in text:
            raise ZeroDivisionError("a model can fail in any way")
        if "package" in text:
            raise ImportError("no phonemes") from ModuleNotFoundError("none", name="fugashi")
        level = float("nan") if "broken" in text else 0.25
        for _ in range(2):
            yield Result(mx.full((round(RATE * PIECE_S / 2),), level))


class Driven:
    """An engine and everything it emitted."""

    def __init__(self, rate: int = RATE) -> None:
        self.events: list[Any] = []
        self.model = FakeModel()
        self.rate = rate
        self.engine = SpeechEngine(
            wire.EngineSpec("tested", "speech"), LIMITS, self._emit, mx, self._load
        )
        self.ready = self.engine.load(lambda loading: None)

    def _load(self, spec: wire.EngineSpec, report: Report) -> LoadedSpeech:
        return LoadedSpeech(
            model=self.model,
            family="fake",
            rate=self.rate,
            weights_bytes=99,
            voices=("adam", "zoe"),
            own_voice="zoe",
            parameters=frozenset(("text", "voice", "speed", "lang_code")),
        )

    def _emit(self, event: Emitted) -> None:
        self.events.append(event)

    def submit(self, text: str = "One. Two.", call_id: int = 1, **fields: Any) -> None:
        self.engine.submit(wire.Speak(call_id, text, **{"format": "pcm", **fields}))

    def run(self, *, credit: bool = True) -> None:
        """Until nothing is left to do; without `credit`, until the first pause of everybody."""
        for _ in range(MOST_STEPS):
            if not self.engine.busy:
                return
            before = len(self.events)
            self.engine.step()
            for event in self.events[before:]:
                if credit and isinstance(event, wire.Bytes):
                    self.engine.credit(event.id, len(event.data))
        raise AssertionError("it never came to an end")

    def data(self, call_id: int = 1) -> bytes:
        parts = [e for e in self.events if isinstance(e, wire.Bytes) and e.id == call_id]
        assert [part.seq for part in parts] == list(range(len(parts)))
        return b"".join(part.data for part in parts)

    def end(self, call_id: int = 1) -> Any:
        (end,) = [
            event
            for event in self.events
            if isinstance(event, wire.Finished | wire.Failed) and event.id == call_id
        ]
        return end


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.engine.close()


def test_ready_lists_the_voices_and_memory_the_weights(driven: Driven) -> None:
    assert driven.ready.voices == ("adam", "zoe")
    assert driven.engine.memory().weights_bytes == 99


def test_pieces_follow_each_other_and_the_end_counts_tokens(driven: Driven) -> None:
    driven.submit("One. Two.")
    driven.run()
    assert len(driven.data()) == 2 * PIECE_S * RATE * 2
    assert [told["text"] for told in driven.model.told] == ["One.", "Two."]
    assert driven.end().usage == wire.Usage(12, 0)


def test_what_was_asked_for_reaches_the_model(driven: Driven) -> None:
    driven.submit("Hi.", voice="adam", speed=1.5, language="fr")
    driven.run()
    assert driven.model.told == [{"text": "Hi.", "voice": "adam", "speed": 1.5, "lang": "fr"}]


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"voice": "eve"}, "invalid_request", "adam, zoe"),
        ({"instructions": "softly"}, "unsupported", "instructions.*cannot"),
        ({"text": " \n"}, "invalid_request", "nothing in it"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_at_once(
    driven: Driven, fields: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(EngineError, match=says) as caught:
        driven.submit(**fields)
    assert caught.value.code == code
    assert not driven.engine.busy


def test_other_kinds_of_request_are_refused(driven: Driven) -> None:
    with pytest.raises(EngineError, match="this model is for speech"):
        driven.engine.submit(wire.Generate(1))
    with pytest.raises(EngineError, match="no tokens"):
        driven.engine.answer(wire.Tokenize(1, "", "text"))
    assert driven.engine.answer(wire.ClearCache(1, "")) == wire.Cleared(1, 0, 0)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("Now explode.", "engine_error", "ZeroDivisionError: a model can fail"),
        ("This is broken.", "engine_error", "not finite"),
        ("Only silence.", "invalid_request", "finds nothing in it to speak"),
        ("A package.", "unsupported", "package 'fugashi'.*pip install 'fugashi'"),
    ],
)
def test_a_failure_ends_its_call_alone(driven: Driven, text: str, code: str, says: str) -> None:
    driven.submit(text, 1)
    driven.submit("Fine.", 2)
    driven.run()
    assert driven.end(1).code == code
    assert re.search(says, driven.end(1).message)
    assert isinstance(driven.end(2), wire.Finished)


def test_calls_take_turns_sentence_by_sentence(driven: Driven) -> None:
    driven.submit("A one. A two.", 1)
    driven.submit("B one. B two.", 2)
    driven.run()
    spoken = [told["text"] for told in driven.model.told]
    assert spoken == ["A one.", "B one.", "A two.", "B two."]


def test_a_listener_that_takes_nothing_stops_its_own_call_alone(driven: Driven) -> None:
    slow = " ".join(f"{'Sentence ' * 30}number {n}." for n in range(40))
    driven.submit(slow, 1)
    for _ in range(60):
        driven.engine.step()
    assert len(driven.data(1)) == wire.SPEECH_CREDIT_BYTES
    spoken = len(driven.model.told)
    driven.submit("Quick.", 2)
    for _ in range(10):
        driven.engine.step()
    assert isinstance(driven.end(2), wire.Finished)
    assert len(driven.model.told) == spoken + 1
    assert driven.engine.busy
    driven.engine.credit(1, 2**30)
    driven.run()
    assert isinstance(driven.end(1), wire.Finished)


def test_a_cancel_ends_the_call_and_its_encoder(driven: Driven) -> None:
    driven.submit("One. Two. Three.", format="mp3")
    driven.engine.step()
    (encoder,) = psutil.Process().children()
    driven.engine.cancel(1)
    driven.engine.cancel(1)
    assert driven.end().code == "cancelled"
    assert not driven.engine.busy
    assert not encoder.is_running()


def test_closing_leaves_no_encoder_behind() -> None:
    driven = Driven()
    driven.submit("One. Two.", format="flac")
    driven.engine.step()
    driven.engine.close()
    assert psutil.Process().children() == []


def test_a_compressed_file_is_whole(driven: Driven) -> None:
    driven.submit("One. Two.", format="mp3")
    driven.run()
    assert isinstance(driven.end(), wire.Finished)
    assert audio.seconds(driven.data(), "mp3") == pytest.approx(2 * PIECE_S, abs=0.1)


def test_pcm_is_always_at_24_khz_and_wav_at_the_models_rate() -> None:
    driven = Driven(rate=16_000)
    driven.submit("One.", 1)
    driven.submit("One.", 2, format="wav")
    driven.run()
    samples = RATE * PIECE_S
    assert len(driven.data(1)) / 2 == pytest.approx(samples * 24 / 16, abs=64)
    assert len(driven.data(2)) == 44 + samples * 2
    values = np.frombuffer(driven.data(1), "<i2")[100:-100]
    assert np.abs(values - 0.25 * 32767).max() <= 2
    driven.engine.close()


def test_samples_are_clipped_and_rounded() -> None:
    values = np.frombuffer(pcm16(np.array([0.0, 1.0, -1.0, 2.0, 0.5], np.float32)), "<i2")
    assert values.tolist() == [0, 32767, -32767, 32767, 16384]


def test_a_folder_that_is_no_model_is_told_apart(tmp_path: Any) -> None:
    spec = wire.EngineSpec("tested", "speech", path=str(tmp_path))
    with pytest.raises(LoadError, match="has no config"):
        loading.load(spec, lambda loading: None)
    (tmp_path / "config.json").write_text('{"model_type": "kokoro"}')
    with pytest.raises(LoadError, match="cannot be loaded"):
        loading.load(spec, lambda loading: None)
