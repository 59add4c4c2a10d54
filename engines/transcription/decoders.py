"""From an audio file to mono samples, piece by piece, at the rate that a model wants.

WAV, MP3 and FLAC are decoded in this process. Everything else, and what that decoder cannot read,
goes through an ffmpeg of its own, which is paused by its full pipe while nobody reads. Neither
holds more of the audio than one piece.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Callable, Generator
from typing import Any, Protocol

import miniaudio
import numpy as np
import numpy.typing as npt

from engines import wire
from engines.base import EngineError
from engines.ffmpeg import environment, find_ffmpeg

Samples = npt.NDArray[np.float32]

STALL_S = 30.0
"""An ffmpeg that gives nothing for so long is stuck."""

_OWN: dict[str, Callable[[str], Any]] = {
    "audio/wav": miniaudio.wav_get_file_info,
    "audio/mpeg": miniaudio.mp3_get_file_info,
    "audio/flac": miniaudio.flac_get_file_info,
}
"""What is decoded in this process; its own general function goes by the file's name."""

_DEMUXERS = "aac,ac3,aiff,amr,asf,au,caf,flac,matroska,mov,mp3,mpegts,ogg,tta,w64,wav,wv"
"""What ffmpeg may take a file for: no playlist, which could name other files of this machine."""

_PIECE = 2**14
_PIPE_BYTES = 2**16
_PROBE_S = 20.0
_REAP_S = 5.0
_FULL_SCALE = 32768.0


class Decoder(Protocol):
    """Reads one file. `total_s` is how long it says it is, None where nothing tells."""

    total_s: float | None

    def read(self) -> Samples | None:
        """The next samples, from -1 to 1; None after the last. Raises `EngineError`."""

    def close(self) -> None:
        """Gives everything back. May be called again."""


def open_decoder(media: wire.Media, rate: int) -> Decoder:
    """A decoder that gives samples at `rate` Hz. Raises `EngineError` naming the field `file`."""
    if media.type in _OWN:
        with contextlib.suppress(miniaudio.MiniaudioError):
            return OwnDecoder(media.path, media.type, rate)
        if find_ffmpeg() is None:
            raise unreadable(
                "it is damaged, or of a kind that takes ffmpeg, which is not installed"
            )
    return FfmpegDecoder(media.path, rate)


def unreadable(why: str) -> EngineError:
    return EngineError("invalid_request", f"file: {why}")


class OwnDecoder:
    """In this process. Raises `miniaudio.MiniaudioError` for a file that it cannot read."""

    def __init__(self, path: str, kind: str, rate: int) -> None:
        self.total_s: float | None = _OWN[kind](path).duration or None
        if kind == "audio/wav" and self.total_s is None:
            # Recorders that were cut off leave such a head; ffmpeg reads what is behind it.
            raise miniaudio.DecodeError("the head of the file says that it is empty")
        self._pieces: Generator[Any, int, None] = miniaudio.stream_file(
            path, miniaudio.SampleFormat.FLOAT32, 1, rate, _PIECE
        )

    def read(self) -> Samples | None:
        try:
            piece = next(self._pieces, None)
        except miniaudio.MiniaudioError as error:
            raise unreadable(f"the audio cannot be decoded any further: {error}") from error
        return None if piece is None else np.array(piece, np.float32)

    def close(self) -> None:
        self._pieces.close()


class FfmpegDecoder:
    """Through an ffmpeg, which `close` ends and reaps."""

    def __init__(self, path: str, rate: int) -> None:
        program = find_ffmpeg()
        if program is None:
            raise EngineError(
                "unsupported",
                "file: only wav, mp3 and flac can be read here; the operator can install ffmpeg "
                "for all other formats",
            )
        self.total_s = _probed(program, path)
        command = [program, "-nostdin", "-hide_banner", "-loglevel", "quiet", *_source(path)]
        command += ["-map", "0:a:0", "-vn", "-sn", "-dn", "-ac", "1", "-ar", str(rate)]
        command += ["-f", "s16le", "pipe:1"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        self._odd = b""
        self._some = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> Samples | None:
        ready, _, _ = select.select([self._pipe], [], [], STALL_S)
        if not ready:
            raise unreadable(f"decoding the audio made no progress for {STALL_S:g} s")
        data = os.read(self._pipe.fileno(), _PIPE_BYTES)
        if not data:
            if not self._some:
                raise unreadable("it holds no audio that can be decoded; it may be damaged")
            return None
        self._some = True
        data = self._odd + data
        whole = len(data) // 2 * 2
        self._odd = data[whole:]
        return np.frombuffer(data[:whole], "<i2").astype(np.float32) / np.float32(_FULL_SCALE)

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_S)


def _source(path: str) -> list[str]:
    """The file as input: nothing but files and pipes may be opened, and no playlist be followed."""
    return [
        "-protocol_whitelist",
        "file,pipe",
        "-format_whitelist",
        _DEMUXERS,
        "-i",
        f"file:{path}",
    ]


def _probed(program: str, path: str) -> float | None:
    """The length that the file states, in seconds."""
    probe = os.path.join(os.path.dirname(program), "ffprobe")
    command = [probe, "-loglevel", "quiet", "-show_entries", "format=duration", "-of", "csv=p=0"]
    try:
        ended = subprocess.run(
            [*command, *_source(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            timeout=_PROBE_S,
            check=False,
        )
        return float(ended.stdout) or None
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None  # no ffprobe, or a file that does not say: its length shows in the end
