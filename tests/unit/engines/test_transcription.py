"""The transcription engine over models that are none: turns, cancels, windows, kinds of results."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from engines import wire
from engines.base import Emitted, EngineError
from engines.text.limits import Mlx
from engines.transcription.audio import RATE
from engines.transcription.engine import MOST_OPEN, TranscriptionEngine
from engines.transcription.model import LoadedModel
from engines.transcription.pieces import Piece, language_of, pieces_of, tokens_of
from engines.transcription.windows import arguments, quietest
from tests.harness.forms import wav

LIMITS = wire.Limits(2**30, 2**20, 2**20, 0, 2**20)


class FakeMlx:
    """Takes every limit."""

    def device_info(self) -> dict[str, Any]:
        return {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *limits: 0


class Echo:
    """Says how long each window is, in whole seconds; `fails` at a window of so many."""

    def __init__(self, fails: int | None = None) -> None:
        self.fails = fails

    def generate(self, audio: Any, *, language: str | None = None, **kwargs: Any) -> Any:
        seconds = round(audio.shape[0] / RATE)
        if seconds == self.fails:
            raise ValueError("a matrix of no shape")
        return SimpleNamespace(text=f"{seconds} seconds", segments=None, language=language or "en")


class Bench:
    """A loaded engine and everything it emitted."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.folder = folder
        self.events: list[Emitted] = []
        loaded = LoadedModel(model, whisper=False, rate=RATE, context_length=0, weights_bytes=9)
        self.engine = TranscriptionEngine(
            wire.EngineSpec("ears", "transcription"),
            LIMITS,
            self.events.append,
            cast(Mlx, FakeMlx()),
            lambda spec, report: loaded,
        )
        self.ready = self.engine.load(lambda loading: None)

    def submit(self, call_id: int = 1, seconds: float = 1.0, **fields: Any) -> Path:
        path = self.folder / f"{call_id}.wav"
        path.write_bytes(wav(seconds, hz=50))
        media = wire.Media("audio", str(path), "audio/wav", path.stat().st_size, "")
        self.engine.submit(wire.Transcribe(call_id, media, **fields))
        return path

    def run(self) -> Bench:
        for _ in range(1000):
            if not self.engine.busy:
                return self
            self.engine.step()
        raise AssertionError("the engine never came to an end")

    def of(self, call_id: int) -> list[Any]:
        return [event for event in self.events if getattr(event, "id", None) == call_id]

    def texts(self, call_id: int = 1) -> list[str]:
        return [event.text for event in self.of(call_id) if isinstance(event, wire.Segment)]


def test_a_call_from_its_file_to_its_text(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Echo())
    assert bench.ready.modalities == ("audio",)
    assert bench.ready.memory.weights_bytes == 9
    bench.submit(seconds=45)
    assert (bench.engine.running, bench.engine.waiting) == (0, 1)
    started, first, second, transcript, finished = bench.run().of(1)
    assert started == wire.Started(1, 0)
    assert (first.index, second.index) == (0, 1)
    assert 24 <= first.end_s <= 30
    assert (second.start_s, second.end_s) == (first.end_s, 45)
    text = (first.text + second.text).strip()
    assert transcript == wire.Transcript(1, text, "en", 45.0)
    assert isinstance(finished, wire.Finished)


def test_calls_take_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Echo())
    bench.submit(1, seconds=100)
    bench.submit(2, seconds=5)
    ends = [e.id for e in bench.run().events if isinstance(e, wire.Finished)]
    assert ends == [2, 1]
    assert bench.texts(2) == [" 5 seconds"]


def test_only_so_many_have_a_file_open(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Echo())
    for call_id in range(1, MOST_OPEN + 4):
        bench.submit(call_id, seconds=40)
    for _ in range(MOST_OPEN * 2):
        bench.engine.step()
    assert (bench.engine.running, bench.engine.waiting) == (MOST_OPEN, 3)
    bench.run()
    assert sum(isinstance(event, wire.Finished) for event in bench.events) == MOST_OPEN + 3


def test_a_cancel_takes_effect_between_two_windows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Echo())
    bench.submit(1, seconds=100)
    bench.submit(2, seconds=1)
    while not bench.texts(1):
        bench.engine.step()
    bench.engine.cancel(1)
    bench.engine.cancel(99)
    *_, last = bench.of(1)
    assert last == wire.Failed(1, "cancelled", "the call was cancelled")
    assert len(bench.texts(1)) == 1
    assert isinstance(bench.run().of(2)[-1], wire.Finished)
    assert bench.of(1)[-1] is last


def test_a_failure_is_the_calls_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path, Echo(fails=7))
    bench.submit(1, seconds=7)
    bench.submit(2, seconds=3)
    bench.submit(3).unlink()
    bench.run()
    assert bench.of(1)[-1] == wire.Failed(1, "engine_error", "ValueError: a matrix of no shape")
    assert "call 1 failed inside the model" in caplog.text
    assert isinstance(bench.of(2)[-1], wire.Finished)
    assert bench.of(3)[-1].code == "engine_error"


def test_silence_is_refused_and_noise_without_speech_has_no_text(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Echo())
    bench.submit().write_bytes(wav(65, level=0))
    started, failed = bench.run().of(1)
    assert started == wire.Started(1, 0)
    assert failed.code == "invalid_request"
    assert failed.message == "file: it is silent: nothing can be heard in it"
    mute = Bench(tmp_path, SimpleNamespace(generate=lambda audio: {"text": ""}))
    mute.submit(seconds=3)
    _, transcript, finished = mute.run().of(1)
    assert transcript == wire.Transcript(1, "", None, 3.0)
    assert isinstance(finished, wire.Finished)


def test_what_it_is_not_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Echo())
    with pytest.raises(EngineError, match="cannot serve Generate"):
        bench.engine.submit(wire.Generate(1))
    with pytest.raises(EngineError, match="it takes no text"):
        bench.engine.answer(wire.Tokenize(1, "", "text"))
    assert bench.engine.answer(wire.ClearCache(1, "")) == wire.Cleared(1, 0, 0)
    bench.submit(1, translate=True)
    assert bench.run().of(1)[-1].code == "unsupported"


def test_close_leaves_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Echo())
    bench.submit(seconds=100)
    for _ in range(2):
        bench.engine.step()
    said = len(bench.events)
    bench.engine.close()
    assert not bench.engine.busy
    assert len(bench.events) == said


# --- what models take -----------------------------------------------------------------------------

AUDIO = wire.Media("audio", "", "audio/wav", 0, "")


class Models:
    """The ways in which mlx-audio's models take arguments."""

    def open_ended(self, audio: Any, *, stream: bool = False, **kwargs: Any) -> None: ...
    def canary(self, audio: Any, *, source_lang: str = "en", target_lang: str = "en") -> None: ...
    def prompted(self, audio: Any, *, language: str, system_prompt: str | None = None) -> None: ...
    def tasked(self, audio: Any, *, task: str, temperature: float, prompt: str) -> None: ...


@pytest.mark.parametrize(
    ("model", "asked", "expected"),
    [
        (Models.open_ended, {"language": "de"}, {"stream": False}),
        (Models.open_ended, {"words": True}, {"stream": False, "word_timestamps": True}),
        (Models.canary, {"words": True}, {}),
        (Models.canary, {"language": "de"}, {"source_lang": "de", "target_lang": "de"}),
        (
            Models.canary,
            {"language": "de", "translate": True},
            {"source_lang": "de", "target_lang": "en"},
        ),
        (
            Models.prompted,
            {"language": "de", "prompt": "names"},
            {"language": "de", "system_prompt": "names"},
        ),
        (
            Models.tasked,
            {"translate": True, "prompt": "names", "temperature": 0.3},
            {"task": "translate", "prompt": "names", "temperature": 0.3},
        ),
    ],
)
def test_arguments(
    model: Callable[..., Any], asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    parameters = inspect.signature(model).parameters
    assert arguments(wire.Transcribe(1, AUDIO, **asked), parameters) == expected


def test_a_window_ends_where_it_is_quiet() -> None:
    samples = np.sin(np.arange(30 * RATE, dtype=np.float32))
    samples[27 * RATE : 27 * RATE + RATE // 4] = 0
    assert 27 * RATE < quietest(samples, RATE) < 27 * RATE + RATE // 4


# --- what models give -----------------------------------------------------------------------------


def token(text: str, start: float, end: float) -> SimpleNamespace:
    return SimpleNamespace(text=text, start=start, end=end)


SENTENCE = SimpleNamespace(
    text=" Good day.",
    start=0.5,
    end=1.25,
    tokens=[token(" Go", 0.5, 0.6), token("od", 0.6, 0.8), token(" day", 0.9, 1.2),
            token(".", 1.2, 1.25)],
)  # fmt: skip
ALIGNED = SimpleNamespace(text="Good day.", sentences=[SENTENCE])
TIMED = SimpleNamespace(
    text="a b",
    language="de",
    generation_tokens=12,
    segments=[
        {
            "start": 0.0,
            "end": 1.0,
            "text": " a",
            "words": [{"word": " a", "start": 0.2, "end": 0.4}],
        },
        {"start": 1.0, "end": 2.0, "text": "  "},
        {"text": " b"},
    ],
)


def generated() -> Iterator[Any]:
    yield "one "
    yield SimpleNamespace(text="two ")
    yield {"text": "three"}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            ALIGNED,
            [
                Piece(
                    10.5,
                    11.25,
                    " Good day.",
                    (wire.Word(" Good", 10.5, 10.8), wire.Word(" day.", 10.9, 11.25)),
                )
            ],
        ),
        (
            TIMED,
            [
                Piece(10.0, 11.0, " a", (wire.Word(" a", 10.2, 10.4),)),
                Piece(10.0, 15.0, " b"),
            ],
        ),
        (SimpleNamespace(text="all", segments=[]), [Piece(10.0, 15.0, "all")]),
        ({"text": "all"}, [Piece(10.0, 15.0, "all")]),
        ("all", [Piece(10.0, 15.0, "all")]),
        (generated(), [Piece(10.0, 15.0, "one two three")]),
        (SimpleNamespace(text="  "), []),
        (SimpleNamespace(sentences=[], text=""), []),
        (None, []),
    ],
)
def test_results(result: Any, expected: list[Piece]) -> None:
    pieces = pieces_of(result, 10.0, 5.0)
    assert [piece.text for piece in pieces] == [piece.text for piece in expected]
    for piece, wanted in zip(pieces, expected, strict=True):
        assert _times(piece) == pytest.approx(_times(wanted))
        assert [word.text for word in piece.words] == [word.text for word in wanted.words]


def _times(piece: Piece) -> list[float]:
    return [piece.start_s, piece.end_s, *(t for w in piece.words for t in (w.start_s, w.end_s))]


def test_what_else_a_result_tells() -> None:
    assert (language_of(TIMED), tokens_of(TIMED)) == ("de", 12)
    assert (language_of(ALIGNED), tokens_of("text")) == (None, 0)
    assert language_of({"language": ["de", "en"]}) is None
    assert math.isclose(pieces_of(ALIGNED, 0.0, 1.0)[0].start_s, 0.5)
