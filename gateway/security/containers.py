"""What a video or an audio file is by its first bytes: its media type. Pure.

Containers are shared: an MP4 or a WebM may hold sound alone, so what a file was sent as decides
between two names of one container, and only what can be neither is refused. What is inside of it is
found out by whoever decodes it.
"""

from __future__ import annotations

from typing import Literal

MediaKind = Literal["image", "video", "audio"]


class NotMedia(Exception):
    """The message says what is wrong, in a client's words."""


Signature = tuple[tuple[int, bytes], ...]
"""What stands where in a file's beginning."""

_SIGNATURES: dict[str, tuple[tuple[Signature, str], ...]] = {
    "video": (
        (((4, b"ftypqt  "),), "video/quicktime"),
        (((4, b"ftyp"),), "video/mp4"),
        # EBML is of Matroska, and of its subset WebM.
        (((0, b"\x1a\x45\xdf\xa3"),), "video/webm"),
        (((0, b"RIFF"), (8, b"AVI ")), "video/x-msvideo"),
    ),
    "audio": (
        (((0, b"RIFF"), (8, b"WAVE")), "audio/wav"),
        (((0, b"fLaC"),), "audio/flac"),
        (((0, b"OggS"),), "audio/ogg"),
        (((0, b"ID3"),), "audio/mpeg"),
        (((4, b"ftyp"),), "audio/mp4"),
        (((0, b"\x1a\x45\xdf\xa3"),), "audio/webm"),
        (((0, b"RF64"), (8, b"WAVE")), "audio/wav"),
        (((0, b"FORM"), (8, b"AIF")), "audio/aiff"),
        (((0, b"caff"),), "audio/x-caf"),
        (((0, b"#!AMR"),), "audio/amr"),
    ),
}
"""The first that fits counts."""

_KNOWN = {"video": "MP4, WebM, Matroska or AVI", "audio": "WAV, MP3, AAC, FLAC, Ogg, MP4 or WebM"}


def look_inside(kind: Literal["video", "audio"], data: bytes) -> str:
    """The media type of `data`, sent as `kind`. Raises `NotMedia` for what cannot be that."""
    for signature, media_type in _SIGNATURES[kind]:
        if all(data.startswith(text, at) for at, text in signature):
            return media_type
    found = _mpeg_frame(data) if kind == "audio" else None
    if found is None:
        raise NotMedia(f"this is no {kind} in {_KNOWN[kind]}")
    return found


def _mpeg_frame(data: bytes) -> str | None:
    """A frame of MPEG audio begins with 11 set bits. Source: ISO 11172-3 2.4.1.3, 13818-7 6.2."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return None
    layer = data[1] >> 1 & 3
    if layer == 0:
        return "audio/aac" if data[1] & 0xF0 == 0xF0 else None
    return "audio/mpeg" if layer == 1 else None
