"""Audio files as tests make, read and measure them, with ffmpeg as the judge."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 24_000
TIMEOUT_S = 60.0

CONTAINERS = {
    "wav": ("-f", "wav"),
    "mp3": ("-f", "mp3"),
    "m4a": ("-c:a", "aac", "-movflags", "frag_keyframe+empty_moov", "-f", "mp4"),
    "ogg": ("-c:a", "libopus", "-f", "ogg"),
    "webm": ("-c:a", "libopus", "-f", "webm"),
}
"""How ffmpeg is asked for each kind of file."""

RAW = ("-f", "s16le", "-ar", str(RATE), "-ac", "1")


def samples(data: bytes, format: str) -> npt.NDArray[np.int16]:
    """The mono samples of a file at `RATE`, as ffmpeg reads them; fails for a broken one."""
    given = RAW if format == "pcm" else ()
    return np.frombuffer(_ffmpeg(data, given, RAW), "<i2")


def seconds(data: bytes, format: str) -> float:
    return len(samples(data, format)) / RATE


def loudness(data: bytes, format: str) -> float:
    """Root mean square, from 0 to 1."""
    values = samples(data, format).astype(np.float64) / 32768
    return float(np.sqrt(np.mean(values**2)))


def converted(data: bytes, format: str) -> bytes:
    """The same sound in another kind of file, one of `CONTAINERS`."""
    return _ffmpeg(data, (), CONTAINERS[format])


def _ffmpeg(data: bytes, given: tuple[str, ...], wanted: tuple[str, ...]) -> bytes:
    command = ["ffmpeg", "-v", "error", *given, "-i", "pipe:0", *wanted, "pipe:1"]
    done: subprocess.CompletedProcess[Any] = subprocess.run(
        command,
        input=data,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr, done.stderr.decode()
    return bytes(done.stdout)
