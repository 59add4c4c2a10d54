"""Audio formats: from 16-bit samples to the bytes of one file, as they are made.

Every encoder is moved along by `pump` and never blocks. `wav` and `pcm` need nothing; the others
need ffmpeg.
"""

from __future__ import annotations

import struct
from typing import Protocol

from engines import ffmpeg
from engines.base import EngineError

PCM_RATE = 24_000
"""Samples a second of `pcm`, which has no header to say so. Source: OpenAI's speech API."""

_UNKNOWN_SIZE = 0xFFFF_FFFF
"""What a WAV header says of a length that is not known yet; readers then go by the end of file."""


class AudioEncoder(Protocol):
    """16-bit little-endian mono samples in, the bytes of one file out."""

    over: bool
    """Whether everything has come out."""

    @property
    def idle(self) -> bool:
        """Whether it has room for more."""

    def give(self, samples: bytes) -> None:
        """Takes samples in."""

    def end(self) -> None:
        """Nothing more will be given."""

    def pump(self, wait_s: float = 0.0) -> bytes:
        """What has come out by now, waiting up to `wait_s` where something else makes it."""

    def close(self) -> None:
        """Gives everything back. May be called again."""


class PlainEncoder:
    """Samples as they are, after a header; without samples not even that."""

    idle = True

    def __init__(self, header: bytes = b"") -> None:
        self._header = header
        self._out = bytearray()
        self._ended = False
        self.over = False

    def give(self, samples: bytes) -> None:
        if samples:
            self._out += self._header + samples
            self._header = b""

    def end(self) -> None:
        self._ended = True

    def pump(self, wait_s: float = 0.0) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        self.over = self._ended
        return out

    def close(self) -> None:
        self._out.clear()


def encoder_for(format: str, rate: int) -> AudioEncoder:
    """An encoder for mono samples at `rate` Hz. Raises `EngineError` without ffmpeg for most."""
    if format == "pcm":
        return PlainEncoder()
    if format == "wav":
        return PlainEncoder(wav_header(rate))
    if ffmpeg.find_ffmpeg() is None:
        raise EngineError(
            "unsupported",
            f"response_format {format!r} needs ffmpeg, which is not installed on the server;"
            " ask for wav or pcm, or have the operator install ffmpeg",
        )
    try:
        return ffmpeg.Encoder(format, rate)
    except ffmpeg.FfmpegError as error:
        raise EngineError("engine_error", str(error)) from error


def rate_of(format: str, rate: int) -> int:
    """The rate that the samples of a file must have, given the model's own."""
    return PCM_RATE if format == "pcm" else rate


def wav_header(rate: int) -> bytes:
    """44 bytes of a mono 16-bit WAV file of unknown length. Source: Microsoft's RIFF WAVE."""
    form = struct.pack("<4sI4s", b"RIFF", _UNKNOWN_SIZE, b"WAVE")
    layout = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
    return form + layout + struct.pack("<4sI", b"data", _UNKNOWN_SIZE)
