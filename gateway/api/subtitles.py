"""Segments of speech as subtitles. Pure.

SubRip has no specification: a number, `hh:mm:ss,mmm --> hh:mm:ss,mmm`, the text, and an empty line,
with line feeds alone as OpenAI's API writes it. WebVTT is W3C's: a head, times with a point, and
`&`, `<`, `>` escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engines import wire

ARROW = "-->"


def srt(segments: Iterable[wire.Segment]) -> str:
    cues = (
        f"{number}\n{_span(segment, ',')}\n{text.replace(ARROW, '->')}\n\n"
        for number, (segment, text) in enumerate(_shown(segments), start=1)
    )
    return "".join(cues)


def vtt(segments: Iterable[wire.Segment]) -> str:
    cues = (f"{_span(segment, '.')}\n{_escaped(text)}\n\n" for segment, text in _shown(segments))
    return "WEBVTT\n\n" + "".join(cues)


def timestamp(seconds: float, point: str) -> str:
    """`hh:mm:ss` and milliseconds behind `point`; hours have at least two digits."""
    milliseconds = max(0, round(seconds * 1000))
    whole, part = divmod(milliseconds, 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{point}{part:03}"


def _span(segment: wire.Segment, point: str) -> str:
    end_s = max(segment.start_s, segment.end_s)
    return f"{timestamp(segment.start_s, point)} {ARROW} {timestamp(end_s, point)}"


def _shown(segments: Iterable[wire.Segment]) -> Iterator[tuple[wire.Segment, str]]:
    """Those with a text, which is one line: an empty one would end it."""
    for segment in segments:
        if text := " ".join(segment.text.split()):
            yield segment, text


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
