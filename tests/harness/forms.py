"""Multipart forms as bytes, and a short sound to put into them."""

from __future__ import annotations

import io
import wave

import numpy as np
import numpy.typing as npt

BOUNDARY = "a-boundary"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"

Part = tuple[str, str | bytes] | tuple[str, bytes, str]
"""A field and its value; with a file name it is a file."""


def form(*parts: Part) -> bytes:
    """The parts in order, and the end."""
    return b"".join(map(_part, parts)) + f"--{BOUNDARY}--\r\n".encode()


def _part(part: Part) -> bytes:
    name, value = part[:2]
    data = value.encode() if isinstance(value, str) else value
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
    if len(part) == 3:
        head += f'; filename="{part[2]}"\r\nContent-Type: application/octet-stream'
    return f"{head}\r\n\r\n".encode() + data + b"\r\n"


def wav(seconds: float = 0.1, rate: int = 16_000, hz: float = 440.0, level: float = 0.5) -> bytes:
    """A tone as a WAV file of 16-bit mono samples."""
    at_s = np.arange(round(seconds * rate)) / rate
    samples = level * 32767 * np.sin(2 * np.pi * hz * at_s)
    return wav_of(np.round(samples).astype(np.int16), rate)


def wav_of(samples: npt.NDArray[np.int16], rate: int) -> bytes:
    """Mono samples as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()
