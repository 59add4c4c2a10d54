"""Formats and what carries them: files that others can read, credit, and no ffmpeg left over."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import psutil
import pytest

from engines import ffmpeg, wire
from engines.base import EngineError
from engines.ffmpeg import Encoder, FfmpegError
from engines.speech.delivery import PIECE_BYTES, WAIT_S, Delivery, DeliveryError
from engines.speech.formats import AudioEncoder, PlainEncoder, encoder_for, wav_header
from tests.harness import audio

RATE = 24_000
MOST_STEPS = 2000


def tone(seconds: float, rate: int = RATE) -> bytes:
    values = (round(9000 * math.sin(at / 20)) for at in range(round(seconds * rate)))
    return b"".join(struct.pack("<h", value) for value in values)


class Sink:
    """A delivery and what it sent."""

    def __init__(self, encoder: AudioEncoder) -> None:
        self.events: list[wire.Bytes] = []
        self.delivery = Delivery(7, encoder, self._emit)

    def _emit(self, event: object) -> None:
        assert isinstance(event, wire.Bytes)
        self.events.append(event)

    @property
    def data(self) -> bytes:
        return b"".join(event.data for event in self.events)

    def until_hungry(self) -> None:
        for _ in range(MOST_STEPS):
            if self.delivery.hungry:
                return
            self.delivery.advance(WAIT_S)
        raise AssertionError("it is never done with what it was given")

    def until_over(self) -> bytes:
        for _ in range(MOST_STEPS):
            if self.delivery.over:
                return self.data
            self.delivery.advance(WAIT_S)
            self.delivery.credit(PIECE_BYTES)
        raise AssertionError("it never came to an end")


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3", "flac", "opus", "aac"])
def test_a_format_given_in_pieces_reads_back_as_one_sound(format: str) -> None:
    sink = Sink(encoder_for(format, RATE))
    for _ in range(4):
        sink.delivery.give(tone(0.5))
        sink.until_hungry()
    sink.delivery.end()
    data = sink.until_over()
    sink.delivery.close()
    assert audio.seconds(data, format) == pytest.approx(2.0, abs=0.1)
    assert audio.loudness(data, format) == pytest.approx(9000 / 32768 / 2**0.5, rel=0.1)
    assert [event.seq for event in sink.events] == list(range(len(sink.events)))


def test_lossless_formats_lose_nothing() -> None:
    sound = tone(0.3)
    for format in ("wav", "flac"):
        sink = Sink(encoder_for(format, RATE))
        sink.delivery.give(sound)
        sink.delivery.end()
        assert audio.samples(sink.until_over(), format).tobytes() == sound
        sink.delivery.close()


def test_a_wav_header_says_what_follows() -> None:
    header = wav_header(22_050)
    assert len(header) == 44
    assert struct.unpack_from("<HHIIHH", header, 20) == (1, 1, 22_050, 44_100, 2, 16)


def test_without_samples_there_is_no_header() -> None:
    encoder = PlainEncoder(b"header")
    encoder.end()
    assert encoder.pump() == b""
    assert encoder.over


def test_no_more_is_sent_than_there_is_credit_for() -> None:
    sink = Sink(encoder_for("pcm", RATE))
    sound = tone(40)
    assert len(sound) > wire.SPEECH_CREDIT_BYTES
    sink.delivery.give(sound)
    sink.delivery.advance()
    assert len(sink.data) == wire.SPEECH_CREDIT_BYTES
    assert max(len(event.data) for event in sink.events) == PIECE_BYTES
    assert (sink.delivery.paused, sink.delivery.hungry) == (True, False)
    sink.delivery.credit(1000)
    assert (sink.delivery.paused, sink.delivery.hungry) == (False, False)
    sink.delivery.advance()
    assert len(sink.data) == wire.SPEECH_CREDIT_BYTES + 1000
    sink.delivery.end()
    assert sink.until_over() == sound


def test_without_ffmpeg_a_format_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"'mp3' needs ffmpeg.*wav or pcm") as caught:
        encoder_for("mp3", RATE)
    assert caught.value.code == "unsupported"
    assert isinstance(encoder_for("wav", RATE), PlainEncoder)


def fake_ffmpeg(folder: Path, script: str) -> None:
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_what_ffmpeg_says_when_it_fails_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_ffmpeg(tmp_path, "echo 'Unknown encoder libmp3lame' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sink = Sink(encoder_for("mp3", RATE))
    sink.delivery.give(tone(3))
    with pytest.raises(DeliveryError, match="ended with 1: Unknown encoder libmp3lame"):
        sink.until_over()
    sink.delivery.close()


def test_an_ffmpeg_that_ends_early_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_ffmpeg(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sink = Sink(encoder_for("mp3", RATE))
    with pytest.raises(DeliveryError, match="ended with 0"):
        sink.until_over()
    sink.delivery.close()


def test_an_ffmpeg_that_does_nothing_is_given_up_and_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_ffmpeg(tmp_path, "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(ffmpeg, "STALL_S", 0.05)
    encoder = Encoder("mp3", RATE)
    process = psutil.Process(encoder.pid)
    encoder.give(bytes(2**20))  # more than a pipe holds

    def run() -> None:
        for _ in range(MOST_STEPS):
            encoder.pump(WAIT_S)

    with pytest.raises(FfmpegError, match="has done nothing"):
        run()
    encoder.close()
    assert not process.is_running()


def test_closing_ends_an_encoder_in_the_middle() -> None:
    encoder = Encoder("flac", RATE)
    process = psutil.Process(encoder.pid)
    encoder.give(tone(5))
    encoder.pump()
    encoder.close()
    encoder.close()
    assert not process.is_running()
