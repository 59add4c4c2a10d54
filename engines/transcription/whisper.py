"""Whisper, one window of at most 30 s at a time, by the long-form rules of its reference.

Each window is encoded once and decoded at one temperature after another until the text is
plausible; the next one begins where the last complete segment ends. The text so far is the next
window's prompt. Thresholds and rules: `openai/whisper`, `transcribe.py`, whose port in mlx-audio
runs a whole file in one call and so can neither be cancelled nor report what it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_audio.stt.models.whisper.audio import log_mel_spectrogram
from mlx_audio.stt.models.whisper.decoding import DecodingOptions
from mlx_audio.stt.models.whisper.timing import add_word_timestamps
from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

from engines import wire
from engines.base import EngineError
from engines.transcription.audio import RATE, Audio, is_silent
from engines.transcription.pieces import Piece

FRAME = 160
"""Samples in one frame of the spectrogram: 10 ms."""
WINDOW = 3000
"""Frames in a window."""
TOKEN_FRAMES = 2
"""Frames in one step of a timestamp."""

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_COMPRESSION = 2.4
"""Text that packs better than this repeats itself."""
LEAST_LOGPROB = -1.0
NO_SPEECH = 0.6
FORGET_ABOVE = 0.5
"""Text that was drawn at a higher temperature is no prompt for what follows."""


@dataclass(slots=True)
class _Window:
    """`frames` of the audio from frame `start` on; `mel` and `features` are as for a full one."""

    start: int
    frames: int
    mel: Any
    features: Any
    temperatures: Iterator[float]
    results: list[Any] = field(default_factory=list)

    @property
    def start_s(self) -> float:
        return self.start * FRAME / RATE


class WhisperRun:
    """One call. `step` does one bounded piece of it, until it is `over`."""

    def __init__(self, model: Any, request: wire.Transcribe, audio: Audio) -> None:
        self._model = model
        self._request = request
        self._audio = audio
        self.language = _language(model, request)
        self.over = False
        self.tokens = 0
        self._window: _Window | None = None
        self._seek = 0
        self._last_speech_s = 0.0
        self._most_context = model.dims.n_text_ctx // 2 - 1
        self._context: list[int] = self._prompt(request.prompt)

    def step(self) -> list[Piece]:
        """Encodes a window, or decodes it once. Raises `EngineError`."""
        if self._window is None:
            self._window = self._next_window()
            return []
        window = self._window
        result = self._decode(window)
        temperature = next(window.temperatures, None) if _implausible(result) else None
        if temperature is not None:
            window.temperatures = _again(temperature, window.temperatures)
            return []
        self._window = None
        return self._accept(window, result)

    def _next_window(self) -> _Window | None:
        """The window at hand, encoded. None for one in which nothing is heard, and at the end."""
        samples = self._audio.window(self._seek * FRAME, WINDOW * FRAME)
        if not len(samples):
            self.over = True
            return None
        frames = -(-len(samples) // FRAME)
        if is_silent(samples):
            self._seek += frames
            return None
        model = self._model
        mel = log_mel_spectrogram(
            mx.array(samples), n_mels=model.dims.n_mels, padding=WINDOW * FRAME - len(samples)
        ).astype(model.dtype)
        features = model.encoder(mel[None])
        mx.eval(features)
        if self.language is None:
            _, (odds,) = model.detect_language(features)
            self.language = max(odds, key=odds.__getitem__)
        asked = self._request.temperature
        temperatures = iter(TEMPERATURES if asked == 0 else (asked,))
        return _Window(self._seek, frames, mel, features, temperatures)

    def _decode(self, window: _Window) -> Any:
        options = DecodingOptions(
            task=self._task,
            language=self.language,
            temperature=next(window.temperatures),
            prompt=list(self._context),
            fp16=self._model.dtype == mx.float16,
        )
        (result,) = self._model.decode(window.features, options)
        self.tokens += len(result.tokens)
        return result

    def _accept(self, window: _Window, result: Any) -> list[Piece]:
        """The segments of a window; moves on to where the next one begins."""
        if result.no_speech_prob > NO_SPEECH and result.avg_logprob <= LEAST_LOGPROB:
            self._seek += window.frames
            return []
        tokenizer = self._model.get_tokenizer(language=self.language, task=self._task)
        cuts, used = cut(np.array(result.tokens), tokenizer.timestamp_begin, window.frames)
        segments = [self._segment(window, tokenizer, *each) for each in cuts]
        if self._request.words:
            self._add_words(window, tokenizer, segments)
            last = next((s["words"][-1]["end"] for s in segments[::-1] if s["words"]), None)
            if last is not None and used < window.frames and last > window.start_s:
                used = round(last * RATE / FRAME) - window.start
        self._seek += used if used > 0 else window.frames  # in any case forward
        kept = [s for s in segments if s["text"].strip() and s["start"] < s["end"]]
        self._remember(result, [token for segment in kept for token in segment["tokens"]])
        return [self._piece(segment, result) for segment in kept]

    def _remember(self, result: Any, tokens: list[int]) -> None:
        self._context = (self._context + tokens)[-self._most_context :]
        if result.temperature > FORGET_ABOVE:
            self._context = []

    def _segment(
        self, window: _Window, tokenizer: Any, tokens: list[int], start: int, end: int
    ) -> dict[str, Any]:
        """As mlx-audio's word timing takes it and adds to it."""
        return {
            "seek": window.start,
            "start": window.start_s + start * FRAME / RATE,
            "end": window.start_s + end * FRAME / RATE,
            "text": tokenizer.decode([token for token in tokens if token < tokenizer.eot]),
            "tokens": tokens,
            "words": [],
        }

    def _add_words(self, window: _Window, tokenizer: Any, segments: list[dict[str, Any]]) -> None:
        add_word_timestamps(
            segments=segments,
            model=self._model,
            tokenizer=tokenizer,
            mel=window.mel,
            num_frames=window.frames,
            last_speech_timestamp=self._last_speech_s,
        )
        for segment in segments:
            if segment["words"]:
                self._last_speech_s = segment["words"][-1]["end"]

    def _piece(self, segment: dict[str, Any], result: Any) -> Piece:
        latest = self._audio.seconds if self._audio.ended else float("inf")
        words = [
            wire.Word(
                word["word"],
                min(word["start"], latest),
                min(word["end"], latest),
                word["probability"],
            )
            for word in segment["words"]
        ]
        return Piece(
            start_s=min(segment["start"], latest),
            end_s=min(segment["end"], latest),
            text=segment["text"],
            words=tuple(words),
            tokens=tuple(segment["tokens"]),
            temperature=result.temperature,
            avg_logprob=result.avg_logprob,
            compression_ratio=result.compression_ratio,
            no_speech_prob=result.no_speech_prob,
        )

    @property
    def _task(self) -> str:
        return "translate" if self._request.translate else "transcribe"

    def _prompt(self, text: str | None) -> list[int]:
        """Its last tokens; the spelling of a control token does not become one."""
        if text is None or not text.strip():
            return []
        tokenizer = self._model.get_tokenizer()
        tokens = tokenizer.encode(f" {text.strip()}")
        return [token for token in tokens if token < tokenizer.eot][-self._most_context :]


def cut(
    tokens: npt.NDArray[np.int64], first_timestamp: int, frames: int
) -> tuple[list[tuple[list[int], int, int]], int]:
    """The segments of a window of `frames`: their tokens, first and last frame; frames used up.

    Where one segment ends and the next begins there are two timestamps. What follows the last such
    pair is not complete, and the next window begins there; a single timestamp at the end says that
    nothing is spoken after it.
    """
    marks = tokens >= first_timestamp
    closed = marks[-2:].tolist() == [False, True]
    ends = (np.flatnonzero(marks[:-1] & marks[1:]) + 1).tolist()
    if not ends:
        stated = (int(tokens[marks][-1]) - first_timestamp) * TOKEN_FRAMES if marks.any() else 0
        return [(tokens.tolist(), 0, stated or frames)], frames
    if closed:
        ends.append(len(tokens))
    segments = []
    begin = 0
    for end in ends:
        part = tokens[begin:end].tolist()
        first, last = ((part[at] - first_timestamp) * TOKEN_FRAMES for at in (0, -1))
        segments.append((part, first, last))
        begin = end
    return segments, frames if closed else min(segments[-1][2], frames)


def _implausible(result: Any) -> bool:
    """Whether to try again at a higher temperature. Silence stays what it is."""
    unlikely = bool(result.avg_logprob < LEAST_LOGPROB)
    if unlikely and result.no_speech_prob > NO_SPEECH:
        return False
    return unlikely or bool(result.compression_ratio > MOST_COMPRESSION)


def _again(first: float, rest: Iterator[float]) -> Iterator[float]:
    yield first
    yield from rest


def _language(model: Any, request: wire.Transcribe) -> str | None:
    """The code of the language asked for, None to find out. Raises `EngineError`."""
    if not model.is_multilingual:
        if request.translate:
            raise EngineError("unsupported", "this model knows English only and cannot translate")
        if request.language is not None and request.language.lower() not in ("en", "english"):
            raise EngineError("unsupported", "language: this model knows English only")
        return "en"
    if request.language is None:
        return None
    given = request.language.lower()
    code = TO_LANGUAGE_CODE.get(given, given)
    if code not in list(LANGUAGES)[: model.num_languages]:
        raise EngineError(
            "invalid_request",
            f"language: this model does not know {request.language!r}; use a code such as en or de",
        )
    return str(code)
