"""What a video or an audio file is, by its first bytes."""

from __future__ import annotations

from typing import Literal

import pytest

from gateway.security.containers import NotMedia, look_inside

Kind = Literal["video", "audio"]

EBML = b"\x1a\x45\xdf\xa3" + bytes(16)


@pytest.mark.parametrize(
    ("kind", "data", "media_type"),
    [
        ("video", b"\0\0\0\x18ftypmp42", "video/mp4"),
        ("video", b"\0\0\0\x14ftypqt  ", "video/quicktime"),
        ("video", EBML, "video/webm"),
        ("video", b"RIFF\1\2\3\4AVI LIST", "video/x-msvideo"),
        ("audio", b"RIFF\1\2\3\4WAVEfmt ", "audio/wav"),
        ("audio", b"ID3\4", "audio/mpeg"),
        ("audio", b"\xff\xfb\x90\x64", "audio/mpeg"),
        ("audio", b"\xff\xf3\x40\xc0", "audio/mpeg"),
        ("audio", b"\xff\xf1\x50\x80", "audio/aac"),
        ("audio", b"fLaC\0", "audio/flac"),
        ("audio", b"OggS\0", "audio/ogg"),
        ("audio", b"\0\0\0\x18ftypM4A ", "audio/mp4"),
        ("audio", EBML, "audio/webm"),
    ],
)
def test_beginnings(kind: Kind, data: bytes, media_type: str) -> None:
    assert look_inside(kind, data) == media_type


@pytest.mark.parametrize("kind", ["video", "audio"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"RIFF",
        b"RIFF\1\2\3\4WEBP",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",  # a JPEG
        b"\xff\xe1",
    ],
)
def test_what_is_neither(kind: Kind, data: bytes) -> None:
    with pytest.raises(NotMedia, match=f"this is no {kind} in "):
        look_inside(kind, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [("video", b"RIFF\1\2\3\4WAVE"), ("video", b"ID3\4"), ("audio", b"RIFF\1\2\3\4AVI ")],
)
def test_one_is_not_the_other(kind: Kind, data: bytes) -> None:
    with pytest.raises(NotMedia):
        look_inside(kind, data)
