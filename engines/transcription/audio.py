"""The audio of one call: windows of samples out of a decoder, with bounds on how much there is.

Owns the decoder and the samples that were read and may still be asked for: windows only move
forward, so never more than about one of them is held.
"""

from __future__ import annotations

import numpy as np

from engines import wire
from engines.base import EngineError
from engines.transcription.decoders import Decoder, Samples, open_decoder, unreadable

RATE = 16_000
"""Samples a second, of nearly every model of speech."""

MOST_S = 4 * 3600
"""Longer audio is refused: at the beginning where the file says so, else when it shows."""

AUDIBLE = 0.0005
"""A sample that can be heard is this large: -66 dB of full scale."""


class Audio:
    """Mono samples at `rate` Hz, from -1 to 1. Times and positions count from the beginning."""

    def __init__(self, decoder: Decoder, rate: int) -> None:
        if decoder.total_s is not None and decoder.total_s > MOST_S:
            decoder.close()
            raise _too_long()
        self.rate = rate
        self.total_s = decoder.total_s
        self._decoder = decoder
        self._held = np.zeros(0, np.float32)
        self._first = 0
        """Position of the first sample that is held."""
        self._pieces: list[Samples] = []
        self._read = 0
        self._peak = 0.0
        self.ended = False

    @property
    def seconds(self) -> float:
        """How much was read so far: all of it once `ended`."""
        return self._read / self.rate

    @property
    def silent(self) -> bool:
        """Whether nothing can be heard in what was read so far."""
        return self._peak < AUDIBLE

    def window(self, start: int, length: int) -> Samples:
        """The `length` samples from `start` on, fewer at the end. What lies before is dropped.

        Raises `EngineError` for a file that cannot be decoded, holds nothing, or is too long.
        """
        self._read_until(start + length)
        self._held = np.concatenate([self._held, *self._pieces])[max(0, start - self._first) :]
        self._pieces.clear()
        self._first = max(self._first, start)
        return self._held[:length]

    def close(self) -> None:
        self._decoder.close()
        self._held = np.zeros(0, np.float32)
        self._pieces.clear()

    def _read_until(self, position: int) -> None:
        while not self.ended and self._read < position:
            piece = self._decoder.read()
            if piece is None:
                self.ended = True
                if not self._read:
                    raise unreadable("it holds no audio that can be decoded; it may be damaged")
                return
            self._pieces.append(piece)
            self._read += len(piece)
            self._peak = max(self._peak, peak_of(piece))
            if self._read > MOST_S * self.rate:
                raise _too_long()


def open_audio(media: wire.Media, rate: int = RATE) -> Audio:
    """Raises `EngineError` for a file that cannot be used."""
    return Audio(open_decoder(media, rate), rate)


def peak_of(samples: Samples) -> float:
    return float(np.abs(samples).max(initial=0.0))


def is_silent(samples: Samples) -> bool:
    """Whether nothing can be heard."""
    return peak_of(samples) < AUDIBLE


def _too_long() -> EngineError:
    return EngineError(
        "invalid_request",
        f"file: the audio is longer than {MOST_S // 3600} hours; send it in several parts",
    )
