"""Segments to a transcript in each of OpenAI's formats, or to its stream of events.

A `verbose_json` has numbers where its schema wants them: what a model does not tell of a segment is
0 there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engines import wire
from gateway.api.errors import openai_error
from gateway.api.languages import name_of
from gateway.api.sse import COMMENT
from gateway.api.subtitles import srt, vtt
from gateway.api.transcriptions import DecodedTranscription, Layout, named
from gateway.errors import GatewayError
from gateway.supervisor.call import CallItem


class TranscriptEvents:
    """A `transcript.text.delta` for each segment, then one `transcript.text.done`.

    The deltas together are the text of the end.
    """

    def __init__(self, decoded: DecodedTranscription) -> None:
        self._begun = False

    def heartbeat(self) -> bytes:
        return COMMENT

    def frames(self, items: Sequence[CallItem]) -> list[bytes]:
        frames: list[bytes] = []
        for item in items:
            match item:
                case wire.Segment() if text := self._delta(item.text):
                    frames.append(_event("transcript.text.delta", delta=text))
                case wire.Transcript():
                    frames.append(_event("transcript.text.done", text=item.text))
                case _:
                    pass  # nothing else is of a transcript, or has a frame
        return frames

    def error(self, error: GatewayError) -> bytes:
        return b"data: " + msgspec.json.encode({"error": openai_error(named(error))}) + b"\n\n"

    def _delta(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text


def _event(kind: str, **fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


class TranscriptEncoder:
    """One body."""

    def __init__(self, decoded: DecodedTranscription) -> None:
        self._decoded = decoded
        self._segments: list[wire.Segment] = []
        self._transcript: wire.Transcript | None = None

    def add(self, items: Sequence[CallItem]) -> None:
        for item in items:
            match item:
                case wire.Segment():
                    self._segments.append(item)
                case wire.Transcript():
                    self._transcript = item
                case _:
                    pass  # nothing else is of a transcript

    def body(self) -> bytes:
        assert self._transcript is not None
        return _BODIES[self._decoded.layout](self._decoded, self._transcript, self._segments)


_Body = Callable[[DecodedTranscription, wire.Transcript, Sequence[wire.Segment]], bytes]


def _json(
    decoded: DecodedTranscription, transcript: wire.Transcript, segments: Sequence[wire.Segment]
) -> bytes:
    return msgspec.json.encode({"text": transcript.text, "usage": _usage(transcript)})


def _verbose(
    decoded: DecodedTranscription, transcript: wire.Transcript, segments: Sequence[wire.Segment]
) -> bytes:
    body: dict[str, Any] = {
        "task": "translate" if decoded.translate else "transcribe",
        "language": name_of(transcript.language),
        "duration": round(transcript.duration_s, 3),
        "text": transcript.text,
    }
    if "segment" in decoded.granularities:
        body["segments"] = [_segment(segment) for segment in segments]
    if "word" in decoded.granularities:
        body["words"] = [_word(word) for segment in segments for word in segment.words]
    return msgspec.json.encode({**body, "usage": _usage(transcript)})


def _segment(segment: wire.Segment) -> dict[str, Any]:
    return {
        "id": segment.index,
        "seek": round(segment.start_s * 100),  # in frames of 10 ms
        "start": round(segment.start_s, 3),
        "end": round(segment.end_s, 3),
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature or 0.0,
        "avg_logprob": _number(segment.avg_logprob),
        "compression_ratio": _number(segment.compression_ratio),
        "no_speech_prob": _number(segment.no_speech_prob),
    }


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _word(word: wire.Word) -> dict[str, Any]:
    return {
        "word": word.text.strip(),
        "start": round(word.start_s, 3),
        "end": round(word.end_s, 3),
    }


def _usage(transcript: wire.Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcript.duration_s)}


_BODIES: dict[Layout, _Body] = {
    "json": _json,
    "verbose_json": _verbose,
    "text": lambda _, transcript, __: f"{transcript.text}\n".encode(),
    "srt": lambda _, __, segments: srt(segments).encode(),
    "vtt": lambda _, __, segments: vtt(segments).encode(),
}
