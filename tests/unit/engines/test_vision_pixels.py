"""Files to pixels, frames and samples; broken ones are told apart from ours."""

from __future__ import annotations

import math
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from mlx_audio.audio_io import read
from PIL import Image

from engines import wire
from engines.base import EngineError
from engines.vision import pixels
from engines.vision.pixels import frame_indices, open_audio, open_image, open_video
from tests.unit.security.test_images import png

RED = (255, 0, 0)


def media(path: Path, kind: Any = "image") -> wire.Media:
    return wire.Media(kind, str(path), "type", path.stat().st_size, "sha")


OPEN: dict[str, Callable[[wire.Media], object]] = {
    "image": open_image,
    "video": lambda media: open_video(media, wire.VideoFrames()),
}


def refused(path: Path, kind: Any = "image") -> str:
    with pytest.raises(EngineError) as failed:
        OPEN[kind](media(path, kind))
    assert failed.value.code == "invalid_request"
    assert str(path) not in str(failed.value)
    return str(failed.value)


# --- images ---------------------------------------------------------------------------------------


def test_an_image_is_turned_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 2), RED)
    exif = image.getexif()
    exif[0x0112] = 6  # orientation: to be turned by a quarter
    image.save(tmp_path / "a.jpg", exif=exif)
    assert open_image(media(tmp_path / "a.jpg")).size == (2, 4)


def test_of_an_animation_the_first_frame_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (2, 2), colour) for colour in (RED, (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert open_image(media(tmp_path / "a.gif")).getpixel((0, 0)) == RED


@pytest.mark.parametrize("data", [b"", b"hello", png(8, 8), b"\xff\xd8\xff\xe0" + b"x" * 40])
def test_a_broken_image(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    assert refused(tmp_path / "a").startswith("the image cannot be used: ")


def test_a_huge_image_is_not_unfolded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(png(60_000, 60_000))
    assert "cannot be used" in refused(tmp_path / "a")


def test_images_of_a_request_have_a_bound_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "MAX_PIXELS_TOGETHER", 20)
    Image.new("RGB", (4, 2), RED).save(tmp_path / "a.png")
    assert open_image(media(tmp_path / "a.png"), 12).size == (4, 2)
    with pytest.raises(EngineError, match="more than 20 pixels; send fewer") as refused:
        open_image(media(tmp_path / "a.png"), 13)
    assert refused.value.code == "invalid_request"


# --- videos ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "rate", "wanted", "count"),
    [
        (100, 10.0, (None, None), 20),
        (100, 10.0, (1.0, None), 10),
        (100, 10.0, (None, 8), 8),
        (100, 10.0, (0.01, None), 4),
        (100, 10.0, (0.01, 2), 2),
        (100_000, 25.0, (None, None), 64),
        (100_000, 25.0, (60.0, 5000), 768),
        (3, 30.0, (None, None), 3),
        (1, 30.0, (None, None), 1),
    ],
)
def test_how_many_frames(
    total: int, rate: float, wanted: tuple[float | None, int | None], count: int
) -> None:
    indices = frame_indices(total, rate, wire.VideoFrames(*wanted))
    assert len(indices) == count
    assert indices == sorted(set(indices))
    assert indices[0] == 0
    assert indices[-1] == total - 1 or count == 1


def video(path: Path, frames: int, size: tuple[int, int] = (32, 16)) -> Path:
    """A file whose frames go from black to white."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, size)
    for number in range(frames):
        writer.write(np.full((size[1], size[0], 3), 255 * number // max(1, frames - 1), np.uint8))
    writer.release()
    return path


def test_frames_are_spread_over_the_video(tmp_path: Path) -> None:
    path = video(tmp_path / "a.avi", 30)
    clip = open_video(media(path, "video"), wire.VideoFrames(most=4))
    assert clip.frames.shape == (4, 3, 16, 32)
    assert (clip.total, clip.rate, clip.indices) == (30, 10.0, [0, 10, 19, 29])
    means = [float(frame.mean()) for frame in clip.frames]
    assert means == sorted(means)
    assert means[0] < 10
    assert means[-1] > 245
    assert [image.size for image in clip.images()] == [(32, 16)] * 4


def test_an_odd_number_of_frames_is_made_even(tmp_path: Path) -> None:
    clip = open_video(media(video(tmp_path / "a.avi", 3), "video"), wire.VideoFrames())
    assert clip.indices == [0, 1, 2, 2]
    assert len(clip.frames) == 4


def test_frames_together_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "MAX_CLIP_BYTES", 4 * 3 * 128)
    clip = open_video(media(video(tmp_path / "a.avi", 8), "video"), wire.VideoFrames(most=4))
    assert clip.frames.shape == (4, 3, 8, 16)


def test_reading_frames_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video(tmp_path / "a.avi", 8)
    monkeypatch.setattr(pixels, "MAX_CLIP_S", -1.0)
    assert "video_max_frames" in refused(tmp_path / "a.avi", "video")


@pytest.mark.parametrize("rate", [math.nan, math.inf, 0.0, -25.0])
def test_a_rate_that_is_none_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    class Capture:
        def __init__(self, path: str) -> None:
            self._opened: Any = opened(path)

        def get(self, which: int) -> float:
            return rate if which == cv2.CAP_PROP_FPS else float(self._opened.get(which))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._opened, name)

    opened = cv2.VideoCapture
    monkeypatch.setattr(cv2, "VideoCapture", Capture)
    clip = open_video(media(video(tmp_path / "a.avi", 8), "video"), wire.VideoFrames(1.0, 6))
    assert (clip.rate, len(clip.frames)) == (1.0, 6)


@pytest.mark.parametrize("data", [b"", b"\0\0\0\x18ftypmp42" + bytes(64), b"RIFF    AVI " * 9])
def test_a_broken_video(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    assert refused(tmp_path / "a", "video").startswith("the video cannot be used: ")


# --- audio ----------------------------------------------------------------------------------------


def wave_of(path: Path, seconds: float, rate: int = 44_100) -> wire.Media:
    """A file in stereo."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.full((int(seconds * rate), 2), 8192, "<i2").tobytes())
    return media(path, "audio")


def test_a_sound_becomes_mono_samples(tmp_path: Path) -> None:
    samples = open_audio(wave_of(tmp_path / "a.wav", 0.5), 8000, read)
    assert (samples.shape, samples.dtype) == ((4000,), np.float32)
    assert samples[1000:3000] == pytest.approx(0.25, abs=0.01)


def test_no_more_is_decoded_than_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "MAX_AUDIO_S", 1.0)
    decoded: list[int] = []

    def decode(*given: Any, **options: Any) -> Any:
        samples, rate = read(*given, **options)
        decoded.append(len(samples))
        return samples, rate

    with pytest.raises(EngineError, match=r"more than 0 and at most 1 s") as refused:
        open_audio(wave_of(tmp_path / "a.wav", 9.0), 8000, decode)
    assert refused.value.code == "invalid_request"
    assert decoded == [2 * 8000]


@pytest.mark.parametrize("data", [b"", b"x", b"RIFF\x24\0\0\0WAVEfmt " + bytes(40)])
def test_broken_audio(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(EngineError, match="the audio cannot be used: ") as refused:
        open_audio(media(tmp_path / "a", "audio"), 8000, read)
    assert refused.value.code == "invalid_request"
    assert str(tmp_path) not in str(refused.value)
