"""Convolutions and resampling against what they stand in for."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engines.speech import convolution
from engines.speech.resample import Resampler

CONVOLUTIONS = [
    # length, in, out, taps, stride, padding, dilation
    (50, 8, 6, 11, 1, 25, 5),
    (40, 3, 4, 3, 1, 3, 3),
    (41, 3, 4, 3, 2, 0, 2),
    (40, 3, 4, 5, 1, 2, 1),
]
TRANSPOSED = [
    # length, in, out, taps, stride, padding, dilation, output padding
    (10, 8, 4, 20, 10, 5, 1, 0),
    (30, 4, 3, 12, 6, 3, 1, 0),
    (9, 2, 2, 3, 2, 1, 1, 1),
    (9, 2, 2, 3, 2, 0, 2, 0),
]


@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_a_convolution_gives_what_mlx_gives(shape: tuple[int, ...]) -> None:
    length, inputs, outputs, taps, stride, padding, dilation = shape
    values = mx.random.normal((2, length, inputs))
    weight = mx.random.normal((outputs, taps, inputs))
    ours = convolution.conv1d(values, weight, stride, padding, dilation)
    theirs = convolution._conv1d(values, weight, stride, padding, dilation)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-4)


@pytest.mark.parametrize("shape", TRANSPOSED)
def test_a_transposed_convolution_gives_what_mlx_gives(shape: tuple[int, ...]) -> None:
    length, inputs, outputs, taps, stride, padding, dilation, more = shape
    values = mx.random.normal((2, length, inputs))
    weight = mx.random.normal((outputs, taps, inputs))
    ours = convolution.conv_transpose1d(values, weight, stride, padding, dilation, more)
    theirs = convolution._conv_transpose1d(values, weight, stride, padding, dilation, more)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-4)


@pytest.mark.parametrize(("rate_in", "rate_out"), [(16_000, 24_000), (44_100, 24_000), (1, 1)])
def test_a_tone_stays_the_same_tone_however_it_is_cut(rate_in: int, rate_out: int) -> None:
    turns = 2 * np.pi * 440 / max(rate_in, 8000)
    sound = np.sin(turns * np.arange(rate_in if rate_in > 1 else 5000)).astype(np.float32)
    whole = Resampler(rate_in, rate_out)
    at_once = np.concatenate([whole.add(sound), whole.flush()])
    pieces = Resampler(rate_in, rate_out)
    cuts = np.split(sound, [1, 7, 300, 2000, 2001])
    cut = np.concatenate([*(pieces.add(part) for part in cuts), pieces.flush()])
    assert len(at_once) == -(-len(sound) * rate_out // rate_in)
    np.testing.assert_allclose(cut, at_once, atol=1e-6)
    wanted = np.sin(turns * np.arange(len(at_once)) * rate_in / rate_out)
    np.testing.assert_allclose(at_once[200:-200], wanted[200:-200], atol=2e-3)
