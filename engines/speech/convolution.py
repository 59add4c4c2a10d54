"""Two convolutions that MLX computes very slowly on a CPU, as one matrix product for each tap.

Dilated and transposed convolutions fall back to a naive loop there; vocoders are made of them, and
become about 17 times faster with this. Never installed where MLX has a GPU.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

_conv1d = mx.conv1d
_conv_transpose1d = mx.conv_transpose1d


def install() -> None:
    """Replaces both for this process, if its device is a CPU."""
    if mx.default_device() == mx.cpu:
        mx.conv1d = conv1d
        mx.conv_transpose1d = conv_transpose1d


def conv1d(  # noqa: PLR0913  the signature of what it replaces
    input: Any,
    weight: Any,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    *,
    stream: Any = None,
) -> Any:
    """`mx.conv1d`: input (batch, length, in), weight (out, taps, in), result (batch, length, out).

    Only the dilated one is computed here: the others are fast as they are.
    """
    if groups != 1 or dilation == 1:
        return _conv1d(input, weight, stride, padding, dilation, groups, stream=stream)
    if padding:
        input = mx.pad(input, [(0, 0), (padding, padding), (0, 0)])
    taps = weight.shape[1]
    length = (input.shape[1] - dilation * (taps - 1) - 1) // stride + 1
    total = None
    for tap in range(taps):
        first = tap * dilation
        rows = input[:, first : first + stride * (length - 1) + 1 : stride]
        product = rows @ weight[:, tap, :].T
        total = product if total is None else total + product
    return total


def conv_transpose1d(  # noqa: PLR0913, PLR0917  the signature of what it replaces
    input: Any,
    weight: Any,
    /,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    output_padding: int = 0,
    groups: int = 1,
    *,
    stream: Any = None,
) -> Any:
    """`mx.conv_transpose1d`: shapes as of `conv1d`."""
    if groups != 1:
        return _conv_transpose1d(
            input, weight, stride, padding, dilation, output_padding, groups, stream=stream
        )
    batch, length, _ = input.shape
    channels, taps, _ = weight.shape
    full = (length - 1) * stride + dilation * (taps - 1) + 1 + output_padding
    total = mx.zeros((batch, full, channels), input.dtype)
    for tap in range(taps):
        first = tap * dilation
        last = first + stride * (length - 1) + 1
        total[:, first:last:stride] += input @ weight[:, tap, :].T
    return total[:, padding : full - padding] if padding else total
