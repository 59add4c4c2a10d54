"""What an image is, by its first bytes."""

from __future__ import annotations

import struct

import pytest

from gateway.security.images import Image, NotAnImage, look_at


def png(width: int, height: int) -> bytes:
    header = struct.pack(">II", width, height) + b"\x08\x02\x00\x00\x00"
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + header


def jpeg(width: int, height: int) -> bytes:
    frame = b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width)
    return b"\xff\xd8\xff\xe0\x00\x04ab\xff" + frame + b"\x03" * 12


GIF = b"GIF89a" + struct.pack("<HH", 3, 2)
WEBP = b"RIFF\x00\x00\x00\x00WEBP"
LOSSY = WEBP + b"VP8 \x00\x00\x00\x00\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", 3, 2)
LOSSLESS = WEBP + b"VP8L\x00\x00\x00\x00\x2f" + struct.pack("<I", 2 | 1 << 14)
EXTENDED = WEBP + b"VP8X\x00\x00\x00\x00\x00\x00\x00\x00" + b"\x02\x00\x00\x01\x00\x00"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (png(3, 2), "image/png"),
        (jpeg(3, 2), "image/jpeg"),
        (GIF, "image/gif"),
        (LOSSY, "image/webp"),
        (LOSSLESS, "image/webp"),
        (EXTENDED, "image/webp"),
    ],
)
def test_images_and_their_beginnings(data: bytes, kind: str) -> None:
    assert look_at(data) == Image(kind, 3, 2)
    for length in range(len(data) - (12 if kind == "image/jpeg" else 5)):
        with pytest.raises(NotAnImage):
            look_at(data[:length])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "no image"),
        (b"", "no image"),
        (b"<svg></svg>", "no image"),
        (png(30_000, 30_000), "scale it down"),
        (png(0, 5), "empty"),
        (b"\xff\xd8\xff\xd9\x00\x05", "broken"),
        (b"\xff\xd8\xff\xe0\x00\x00\xff\xff", "broken"),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(NotAnImage, match=message):
        look_at(data)
