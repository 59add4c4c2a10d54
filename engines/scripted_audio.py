"""What a scripted model hears: its script, a segment for each delta and a second for each segment.

It reads the file it is given, to the last byte, so that what an upload has done to it is seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engines import wire
from engines.base import EngineError

SEGMENT_S = 1.0


class Hearing:
    """One transcription, told like an `engines.answer.Answer`. Raises `EngineError`.

    That is for a file that is not the one the request speaks of.
    """

    def __init__(self, request: wire.Transcribe) -> None:
        _check(request.audio)
        self._request = request
        self._texts: list[str] = []
        self.reasoning_tokens = 0
        self.over = False

    def add(
        self,
        text: str,
        special: bool | None = None,
        *,
        tokens: int = 1,
        logprobs: Sequence[wire.TokenLogprob] = (),
    ) -> list[wire.Segment]:
        """One segment, and each word of it as long as every other."""
        if special or not text:
            return []
        index = len(self._texts)
        self._texts.append(text)
        begin_s = index * SEGMENT_S
        words = tuple(_words(text, begin_s)) if self._request.words else ()
        return [
            wire.Segment(
                self._request.id,
                index,
                begin_s,
                begin_s + SEGMENT_S,
                text,
                words,
                temperature=self._request.temperature,
            )
        ]

    def finish(self, reason: str) -> list[wire.Transcript]:
        language = "en" if self._request.translate else self._request.language or "en"
        seconds = len(self._texts) * SEGMENT_S
        text = "".join(self._texts).strip()
        return [wire.Transcript(self._request.id, text, language, seconds)]


def _words(text: str, begin_s: float) -> list[wire.Word]:
    words = text.split()
    length_s = SEGMENT_S / max(1, len(words))
    return [
        wire.Word(f" {word}", begin_s + number * length_s, begin_s + (number + 1) * length_s)
        for number, word in enumerate(words)
    ]


def _check(media: wire.Media) -> None:
    try:
        with open(media.path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as error:
        raise EngineError("engine_error", f"the file cannot be read: {error.strerror}") from error
    if (size, digest) != (media.size, media.sha256):
        raise EngineError("engine_error", "the file is not the one that was uploaded")
