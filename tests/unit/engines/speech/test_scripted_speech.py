"""The speech of the scripted engine: tones by the word, scripts, faults and credit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import wire
from engines.base import Emitted, EngineError
from engines.scripted import ScriptedEngine
from engines.speech.scripted import WORD_S, tone

LIMITS = wire.Limits(0, 0, 0, 0, 0)
WORD_BYTES = round(WORD_S * 24_000) * 2
MOST_STEPS = 10_000


class Machine:
    """A clock that only `wait` moves, and a note of everything else."""

    def __init__(self) -> None:
        self.time = 0.0
        self.exits: list[int] = []

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds

    def exit(self, code: int) -> None:
        self.exits.append(code)

    def hang(self) -> None:
        raise AssertionError("nothing hangs here")

    def freeze(self) -> None:
        raise AssertionError("nothing freezes here")

    def write_stderr(self, text: str) -> None:
        raise AssertionError(f"nothing is said here: {text}")


class Bench:
    def __init__(self, **options: Any) -> None:
        self.machine = Machine()
        self.events: list[Any] = []
        spec = wire.EngineSpec("scripted", "scripted", scripted=options)
        self.engine = ScriptedEngine(spec, LIMITS, self._emit, self.machine)

    def _emit(self, event: Emitted) -> None:
        self.events.append(event)

    def speak(self, text: str, call_id: int = 1, **fields: Any) -> Bench:
        self.engine.submit(wire.Speak(call_id, text, **{"format": "pcm", **fields}))
        return self

    def run(self) -> Bench:
        for _ in range(MOST_STEPS):
            if not self.engine.busy:
                return self
            self.engine.step()
        raise AssertionError("the engine never came to an end")

    @property
    def data(self) -> bytes:
        return b"".join(event.data for event in self.events if isinstance(event, wire.Bytes))


def test_every_word_is_a_tone_and_the_end_counts_words() -> None:
    bench = Bench().speak("one three five").run()
    expected = tone("alto", 3, 1.0) + tone("alto", 5, 1.0) + tone("alto", 4, 1.0)
    assert bench.data == expected
    assert len(expected) == 3 * WORD_BYTES
    assert bench.events[-1].usage == wire.Usage(3, 0)


def test_voice_and_speed_change_the_tone() -> None:
    assert Bench().speak("one", voice="bass").run().data == tone("bass", 3, 1.0)
    assert len(Bench().speak("one", speed=2.0).run().data) == WORD_BYTES / 2
    with pytest.raises(EngineError, match="alto, bass"):
        Bench().speak("one", voice="tenor")


def test_words_take_their_time() -> None:
    bench = Bench(tokens_per_s=4).speak("one two three").run()
    assert bench.machine.time == pytest.approx(0.5)


def test_a_script_can_sleep_fail_and_end_the_process() -> None:
    bench = Bench().speak(json.dumps({"script": ["one ", {"sleep": 3}, {"raise": "no"}]})).run()
    assert bench.machine.time == pytest.approx(3)
    assert bench.events[-1] == wire.Failed(1, "engine_error", "no")
    bench = Bench().speak(json.dumps({"script": ["one ", {"exit": 7}]}))
    bench.engine.step()
    bench.engine.step()
    bench.engine.step()
    assert bench.machine.exits == [7]


def test_pieces_of_audio_count_as_deltas_for_faults() -> None:
    bench = Bench(exit_after=2).speak("one two three").run()
    assert bench.machine.exits == [1]


def test_without_credit_nothing_more_is_spoken() -> None:
    words = 2 * wire.SPEECH_CREDIT_BYTES // WORD_BYTES
    bench = Bench().speak("word " * words)
    for _ in range(words):
        bench.engine.step()
    assert len(bench.data) == wire.SPEECH_CREDIT_BYTES
    assert bench.engine.busy
    bench.engine.credit(1, 2**30)
    assert len(bench.run().data) == words * WORD_BYTES


def test_a_cancel_ends_the_call() -> None:
    bench = Bench(tokens_per_s=1).speak("one two three")
    bench.engine.step()
    assert bench.engine.running == 1
    bench.engine.cancel(1)
    assert bench.events[-1].code == "cancelled"
    assert not bench.engine.busy
