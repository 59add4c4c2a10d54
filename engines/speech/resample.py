"""Another sample rate, piece by piece, as if the whole were resampled at once.

A windowed-sinc filter with one set of taps for each phase of the ratio. Source: Smith, "Digital
audio resampling", with a Kaiser window.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

_HALF_TAPS = 16
"""Input samples on each side, at the lower of the two rates."""

_KAISER_BETA = 8.0
_ROLL_OFF = 0.95

Samples = np.ndarray[Any, np.dtype[np.float32]]


class Resampler:
    """From `rate_in` to `rate_out` samples a second; one channel of float32."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        common = gcd(rate_in, rate_out)
        self._up, self._down = rate_out // common, rate_in // common
        scale = min(1.0, rate_out / rate_in)
        self._half = int(np.ceil(_HALF_TAPS / scale))
        self._taps = _phases(self._up, self._half, scale * _ROLL_OFF)
        self._kept: Samples = np.zeros(self._half, np.float32)
        self._kept_at = -self._half  # of its first sample, in the input
        self._next = 0  # output sample

    def add(self, samples: Samples) -> Samples:
        """What can be computed now that these are there."""
        self._kept = np.concatenate([self._kept, samples])
        known = self._kept_at + len(self._kept)
        # The centre of output n is n * down // up, and it needs `half` samples after that.
        count = max(0, -(-(known - self._half) * self._up // self._down) - self._next)
        numbers = (self._next + np.arange(count)) * self._down
        centres, phases = numbers // self._up, numbers % self._up
        offsets = np.arange(1 - self._half, self._half + 1)
        rows = self._kept[(centres - self._kept_at)[:, None] + offsets]
        out: Samples = np.einsum("nt,nt->n", rows, self._taps[phases]).astype(np.float32)
        self._next += count
        first = self._next * self._down // self._up - self._half
        self._kept = self._kept[max(0, first - self._kept_at) :]
        self._kept_at = max(self._kept_at, first)
        return out

    def flush(self) -> Samples:
        """The rest, at the end."""
        return self.add(np.zeros(self._half, np.float32))


def _phases(up: int, half: int, cutoff: float) -> Samples:
    """Taps by phase: (up, 2 * half). `cutoff` is a fraction of the input's half rate."""
    offsets = np.arange(1 - half, half + 1) - np.arange(up)[:, None] / up
    window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1 - (offsets / half) ** 2, 0, 1)))
    taps = np.sinc(offsets * cutoff) * window
    return np.asarray(taps / taps.sum(axis=1, keepdims=True), np.float32)
