"""Files of a request to what processors take: images, frames of videos, waveforms.

The gateway has looked at each file's beginning; here it is decoded, and whatever turns out to be
broken then is the client's affair: every failure is an `EngineError` that says which file.
Bounds hold before memory is taken: an image by the size in its header, a clip by frames and bytes.
Nothing else of the model runs meanwhile, so a clip has a bound in time as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from engines import wire
from engines.base import EngineError

MAX_IMAGE_PIXELS = 64_000_000
MAX_PIXELS_TOGETHER = 256_000_000
"""Of all images of one request, which are in memory at the same time."""

MAX_CLIP_BYTES = 256 * 2**20
MAX_CLIP_FRAMES = 768
MAX_CLIP_S = 20.0
"""To take its frames; a request holds four videos, and after two minutes an engine counts as hung.
"""
MAX_AUDIO_S = 3600.0

FRAMES_PER_SECOND = 2.0
MOST_FRAMES = 64
FEWEST_FRAMES = 4
"""What a video is looked at with unless its request says otherwise."""

_CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames [frames, 3, height, width] of a video, an even number of them; rates are per second.

    `indices` says which frames of the `total` they are.
    """

    frames: Any
    total: int
    rate: float
    indices: list[int]

    def images(self) -> list[Image.Image]:
        """One image for each frame, for models that know no videos."""
        return [Image.fromarray(frame.transpose(1, 2, 0)) for frame in self.frames]


def open_image(media: wire.Media, others: int = 0) -> Image.Image:
    """The image upright in RGB; of an animation the first frame. Raises `EngineError`.

    `others` is how many pixels the request's images before it have.
    """
    try:
        with Image.open(media.path) as image:
            if image.width * image.height > MAX_IMAGE_PIXELS:
                raise _unusable(
                    media,
                    f"it has {image.width} x {image.height} pixels;"
                    f" {MAX_IMAGE_PIXELS:,} are allowed",
                )
            if image.width * image.height + others > MAX_PIXELS_TOGETHER:
                raise _unusable(
                    media,
                    f"with it the images of this request have more than {MAX_PIXELS_TOGETHER:,}"
                    " pixels; send fewer, or smaller ones",
                )
            return ImageOps.exif_transpose(image).convert("RGB")
    except EngineError:
        raise
    except Exception as error:  # decoders raise anything at broken data
        raise _unusable(media, _said(media, error)) from error


def open_video(media: wire.Media, wanted: wire.VideoFrames) -> Clip:
    """Frames evenly spread over the video, made smaller where they would take too much room.

    Raises `EngineError`.
    """
    import cv2

    capture = cv2.VideoCapture(media.path)
    try:
        if not capture.isOpened():
            raise _unusable(media, "it is no video that can be read")
        return _clip(media, capture, wanted)
    except cv2.error as error:
        raise _unusable(media, _said(media, error)) from error
    finally:
        capture.release()


def _clip(media: wire.Media, capture: Any, wanted: wire.VideoFrames) -> Clip:
    import cv2

    total = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    rate = _rate(capture.get(cv2.CAP_PROP_FPS))
    width = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH))
    height = int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
    if total < 1 or not 0 < width * height <= MAX_IMAGE_PIXELS:
        raise _unusable(media, f"it has {total} frames of {width} x {height} pixels")
    indices = frame_indices(total, rate, wanted)
    size = _frame_size(width, height, len(indices))
    frames = []
    until = monotonic() + MAX_CLIP_S
    for index in indices:
        if monotonic() > until:
            raise _unusable(
                media,
                f"{len(indices)} frames of it are not read in {MAX_CLIP_S:g} s; ask for fewer"
                " (video_max_frames), or send it shorter or smaller",
            )
        capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        there, frame = capture.read()
        if not there:
            break  # headers may promise more frames than there are
        scaled = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
        frames.append(cv2.cvtColor(scaled, cv2.COLOR_BGR2RGB))
    if not frames:
        raise _unusable(media, "none of its frames can be read")
    indices = indices[: len(frames)]
    if len(frames) % 2:
        frames.append(frames[-1])
        indices.append(indices[-1])
    return Clip(np.stack(frames).transpose(0, 3, 1, 2), total, rate, indices)


def _rate(said: float) -> float:
    """Frames per second; one where the file does not say so."""
    return said if math.isfinite(said) and said > 0 else 1.0


def frame_indices(total: int, rate: float, wanted: wire.VideoFrames) -> list[int]:
    """Which of `total` frames to look at; `rate` is how many there are in a second."""
    per_second = wanted.fps or FRAMES_PER_SECOND
    most = min(wanted.most or MOST_FRAMES, MAX_CLIP_FRAMES, total)
    count = max(min(math.floor(total / rate * per_second), most), min(FEWEST_FRAMES, most), 1)
    return [int(index) for index in np.linspace(0, total - 1, count).round()]


def _frame_size(width: int, height: int, frames: int) -> tuple[int, int]:
    room = MAX_CLIP_BYTES // (_CHANNELS * frames)
    scale = min(1.0, math.sqrt(room / (width * height)))
    return max(1, int(width * scale)), max(1, int(height * scale))


def open_audio(media: wire.Media, rate: int, decode: Callable[..., Any]) -> Any:
    """Mono samples at `rate` per second, float32 [samples]; `decode` is mlx-audio's `read`.

    Raises `EngineError`.
    """
    try:
        # A small file may hold days of silence, so no more is decoded than shows that it is long.
        samples, _ = decode(
            media.path, dtype="float32", sample_rate=rate, nchannels=1, duration=MAX_AUDIO_S + 1
        )
    except Exception as error:  # decoders raise anything at broken data
        raise _unusable(media, _said(media, error)) from error
    if not 0 < len(samples) <= MAX_AUDIO_S * rate:
        raise _unusable(
            media,
            f"it must last more than 0 and at most {MAX_AUDIO_S:.0f} s",
        )
    return samples


def _said(media: wire.Media, error: Exception) -> str:
    """Without the name of the file, which is the gateway's own affair."""
    text = " ".join(str(error).replace(media.path, "the file").split())
    return text[:200] or type(error).__name__


def _unusable(media: wire.Media, why: str) -> EngineError:
    return EngineError("invalid_request", f"the {media.kind} cannot be used: {why}")
