"""Subtitles, as data."""

from __future__ import annotations

import pytest

from engines import wire
from gateway.api.subtitles import srt, timestamp, vtt


def segment(start_s: float, end_s: float, text: str, index: int = 0) -> wire.Segment:
    return wire.Segment(1, index, start_s, end_s, text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "00:00:00,000"),
        (0.0004, "00:00:00,000"),
        (1.9996, "00:00:02,000"),
        (59.9996, "00:01:00,000"),
        (61.5, "00:01:01,500"),
        (3599.9999, "01:00:00,000"),
        (3 * 3600 + 25 * 60 + 45.678, "03:25:45,678"),
        (100 * 3600, "100:00:00,000"),
        (-0.1, "00:00:00,000"),
    ],
)
def test_timestamps(seconds: float, expected: str) -> None:
    assert timestamp(seconds, ",") == expected
    assert timestamp(seconds, ".") == expected.replace(",", ".")


SPOKEN = [
    segment(0, 2.5, " Hello there."),
    segment(2.5, 2.4, "\n\nA <b> & an --> arrow,\nin two lines \n\n"),
    segment(5, 6, "   "),
    segment(6.0004, 7.25, "Ü"),
]


def test_subrip() -> None:
    assert srt(SPOKEN) == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello there.\n\n"
        "2\n00:00:02,500 --> 00:00:02,500\nA <b> & an -> arrow, in two lines\n\n"
        "3\n00:00:06,000 --> 00:00:07,250\nÜ\n\n"
    )
    assert srt([]) == ""


def test_webvtt() -> None:
    assert vtt(SPOKEN) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:02.500\nHello there.\n\n"
        "00:00:02.500 --> 00:00:02.500\nA &lt;b&gt; &amp; an --&gt; arrow, in two lines\n\n"
        "00:00:06.000 --> 00:00:07.250\nÜ\n\n"
    )
    assert vtt([]) == "WEBVTT\n\n"
