"""Audio files to samples: in this process, through ffmpeg, and those that are none."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from engines import wire
from engines.base import EngineError
from engines.transcription import audio, decoders
from engines.transcription.audio import RATE, Audio, is_silent, open_audio
from engines.transcription.decoders import FfmpegDecoder, OwnDecoder, Samples, open_decoder
from tests.harness.forms import wav

SECONDS = 2.0
TYPES = {
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "ogg": "audio/ogg",
    "webm": "audio/webm",
    "aac": "audio/aac",
    "aiff": "audio/aiff",
}


def media(path: Path, kind: str) -> wire.Media:
    return wire.Media("audio", str(path), kind, path.stat().st_size, "")


def saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def tone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 440 Hz, at another rate than a model wants."""
    folder = tmp_path_factory.mktemp("tone")
    return saved(folder / "tone.wav", wav(SECONDS, rate=24_000))


def converted(tone: Path, kind: str) -> Path:
    path = tone.with_suffix(f".{kind}")
    command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-y", "-i", str(tone), str(path)]
    subprocess.run(command, check=True, timeout=60)
    return path


def pitch(samples: Samples) -> float:
    spectrum = np.abs(np.fft.rfft(samples))
    return float(np.fft.rfftfreq(len(samples), 1 / RATE)[spectrum.argmax()])


def heard(path: Path, kind: str) -> Samples:
    with contextlib.closing(open_audio(media(path, kind))) as sound:
        samples = sound.window(0, 10 * RATE)
        assert sound.ended
        assert sound.seconds == len(samples) / RATE
        return samples


def check(samples: Samples) -> None:
    assert samples.dtype == np.float32
    assert len(samples) / RATE == pytest.approx(SECONDS, abs=0.15)
    assert pitch(samples) == pytest.approx(440, abs=2)
    assert float(np.abs(samples).max()) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac"])
def test_these_need_no_tool(tone: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tone if kind == "wav" else converted(tone, kind)
    unnamed = saved(tone.with_name("upload.media"), path.read_bytes())
    monkeypatch.setattr(decoders, "find_ffmpeg", lambda: None)
    check(heard(unnamed, TYPES[kind]))


@pytest.mark.parametrize("kind", TYPES)
def test_formats(tone: Path, kind: str) -> None:
    path = tone if kind == "wav" else converted(tone, kind)
    check(heard(saved(tone.with_name("upload.media"), path.read_bytes()), TYPES[kind]))


def test_what_ours_cannot_read_goes_through_ffmpeg(tone: Path) -> None:
    """An AAC file that says of itself, by a tag at its beginning, what an MP3 says."""
    path = saved(
        tone.with_name("tagged"), b"ID3\x04\0\0\0\0\0\0" + converted(tone, "aac").read_bytes()
    )
    decoder = open_decoder(media(path, "audio/mpeg"), RATE)
    assert isinstance(decoder, FfmpegDecoder)
    decoder.close()
    check(heard(path, "audio/mpeg"))


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_file_that_was_written_as_a_stream(tone: Path, size: int) -> None:
    """Its head was written before anybody knew how long it would be."""
    data = bytearray(tone.read_bytes())
    data[40:44] = size.to_bytes(4, "little")
    check(heard(saved(tone.with_name("streamed"), bytes(data)), "audio/wav"))


def test_a_playlist_is_no_audio(tmp_path: Path, tone: Path) -> None:
    """It would have ffmpeg read another file of this machine."""
    path = saved(tmp_path / "list", f"#EXTM3U\n#EXTINF:2,\nfile://{tone}\n".encode())
    with pytest.raises(EngineError, match="file: it holds no audio"):
        heard(path, "audio/ogg")
    concat = saved(tmp_path / "concat", f"ffconcat version 1.0\nfile '{tone}'\n".encode())
    with pytest.raises(EngineError, match="file: it holds no audio"):
        heard(concat, "audio/ogg")


NOISE = bytes(np.random.default_rng(1).integers(0, 256, 20_000, np.uint8))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"RIFF\0\0\0\0WAVE" + NOISE, "audio/wav"),
        (wav(0.0), "audio/wav"),
        (b"ID3\x03" + b"\0" * 5000, "audio/mpeg"),
        (b"fLaC" + NOISE, "audio/flac"),
        (b"OggS" + NOISE, "audio/ogg"),
        (b"\0\0\0\x20ftypM4A " + NOISE, "audio/mp4"),
        (b"\x1a\x45\xdf\xa3" + NOISE, "audio/webm"),
    ],
    ids=["wav", "no samples", "mp3", "flac", "ogg", "m4a", "webm"],
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes, kind: str) -> None:
    before = psutil.Process().children()
    with pytest.raises(EngineError) as error:
        heard(saved(tmp_path / "damaged", data), kind)
    assert error.value.code == "invalid_request"
    assert str(error.value).startswith("file: ")
    assert psutil.Process().children() == before


def test_without_ffmpeg_it_is_said(tone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "find_ffmpeg", lambda: None)
    with pytest.raises(EngineError, match="the operator can install ffmpeg") as error:
        open_audio(media(tone, "audio/webm"))
    assert error.value.code == "unsupported"
    with pytest.raises(EngineError, match="file: it is damaged, or of a kind"):
        open_audio(media(saved(tone.with_name("none"), b"RIFF"), "audio/wav"))


def test_an_ffmpeg_is_paused_while_nobody_reads_and_gone_when_closed(tmp_path: Path) -> None:
    path = converted(saved(tmp_path / "long.wav", wav(20, hz=100)), "ogg")
    decoder = FfmpegDecoder(str(path), RATE)
    assert decoder.total_s == pytest.approx(20, abs=0.1)
    first = decoder.read()
    assert first is not None
    child = psutil.Process(decoder.pid)
    assert "LD_PRELOAD" not in child.environ()
    decoder.close()
    assert not psutil.pid_exists(child.pid)
    decoder.close()


# --- windows --------------------------------------------------------------------------------------


class Counting:
    """Gives 0, 1, 2, ... in pieces of ten, `total` in all."""

    def __init__(self, total: int, total_s: float | None = None) -> None:
        self.total_s = total_s
        self.pieces: Iterator[Samples] = (
            np.arange(at, min(at + 10, total), dtype=np.float32) for at in range(0, total, 10)
        )
        self.given = 0
        self.closed = False

    def read(self) -> Samples | None:
        piece = next(self.pieces, None)
        self.given += 0 if piece is None else len(piece)
        return piece

    def close(self) -> None:
        self.closed = True


def test_windows_move_forward_and_read_no_more_than_they_need() -> None:
    source = Counting(105)
    sound = Audio(source, 10)
    assert sound.window(0, 25).tolist() == list(range(25))
    assert source.given == 30
    assert sound.window(20, 25).tolist() == list(range(20, 45))
    assert sound.window(20, 5).tolist() == list(range(20, 25))
    assert sound.window(70, 25).tolist() == list(range(70, 95))
    assert source.given == 100
    assert sound.window(95, 25).tolist() == list(range(95, 105))
    assert sound.ended
    assert sound.seconds == 10.5
    assert sound.window(105, 25).tolist() == []
    sound.close()
    assert source.closed


def test_too_long_by_its_own_word_or_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = Counting(10, total_s=4 * 3600 + 1)
    with pytest.raises(EngineError, match="longer than 4 hours"):
        Audio(stated, 10)
    assert stated.closed
    monkeypatch.setattr(audio, "MOST_S", 5)
    sound = Audio(Counting(1000), 10)
    assert len(sound.window(0, 50)) == 50
    with pytest.raises(EngineError, match="file: the audio is longer"):
        sound.window(40, 50)


def test_silence() -> None:
    assert is_silent(np.zeros(100, np.float32))
    assert is_silent(np.zeros(0, np.float32))
    assert not is_silent(np.full(100, -0.01, np.float32))


def test_the_own_decoder_knows_the_length(tone: Path) -> None:
    decoder = OwnDecoder(str(tone), "audio/wav", RATE)
    assert decoder.total_s == pytest.approx(SECONDS)
    decoder.close()
