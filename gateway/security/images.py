"""What an image is by its first bytes: its type and its size, without decoding it. Pure.

A small file can unfold to gigabytes, so the size counts before anything is decoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_PIXELS = 64_000_000


class NotAnImage(Exception):
    """The message says what is wrong, in a client's words."""


@dataclass(frozen=True, slots=True)
class Image:
    """`kind` is a media type; sizes are in pixels."""

    kind: str
    width: int
    height: int


def look_at(data: bytes) -> Image:
    """Raises `NotAnImage` for what is no PNG, JPEG, GIF or WebP, is cut short, or is too large."""
    try:
        image = _image(data)
    except (struct.error, IndexError):
        raise NotAnImage("the image is cut short") from None
    if image is None:
        raise NotAnImage("this is no image in PNG, JPEG, GIF or WebP")
    if image.width < 1 or image.height < 1:
        raise NotAnImage("the image is empty")
    if image.width * image.height > MAX_PIXELS:
        raise NotAnImage(
            f"the image has {image.width} x {image.height} pixels; "
            f"{MAX_PIXELS:,} are allowed, so scale it down"
        )
    return image


def _image(data: bytes) -> Image | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        if data[12:16] != b"IHDR":
            raise NotAnImage("the PNG does not begin with its header")
        return Image("image/png", *struct.unpack(">II", data[16:24]))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Image("image/gif", *struct.unpack("<HH", data[6:10]))
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    return None


def _jpeg(data: bytes) -> Image:
    """The size is in the first start-of-frame segment. Source: ITU T.81, B.1 and B.2."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise NotAnImage("the JPEG is broken")
        marker = data[at + 1]
        if marker == 0xFF:  # fill
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return Image("image/jpeg", width, height)
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:  # without a length
            at += 2
        else:
            (length,) = struct.unpack(">H", data[at + 2 : at + 4])
            if length < 2 or marker in (0xD9, 0xDA):
                raise NotAnImage("the JPEG is broken")
            at += 2 + length


def _webp(data: bytes) -> Image:
    """Source: the WebP container specification, for its three kinds of first chunk."""
    kind = data[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1 if len(data) >= 30 else 0
        height = int.from_bytes(data[27:30], "little") + 1
        return Image("image/webp", width, height)
    if kind == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        return Image("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return Image("image/webp", width & 0x3FFF, height & 0x3FFF)
    raise NotAnImage("the WebP is broken")
