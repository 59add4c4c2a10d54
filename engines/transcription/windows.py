"""Any other model of mlx-audio: windows of at most 30 s, each by one call of its `generate`.

A window ends where it is quietest towards its end, so that no word is cut in two.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from engines import wire
from engines.base import EngineError
from engines.transcription.audio import Audio, is_silent
from engines.transcription.decoders import Samples
from engines.transcription.pieces import Piece, language_of, pieces_of, tokens_of

WINDOW_S = 30
SEARCH_S = 6
"""The end of a window is looked for in its last seconds."""
_QUIET_S = 0.1
_PROMPTS = ("initial_prompt", "prompt", "context", "system_prompt")
"""What models call the text that guides them; a model has one of these, if any."""


class WindowRun:
    """One call, as `pieces.Run`."""

    def __init__(self, model: Any, request: wire.Transcribe, audio: Audio) -> None:
        self._model = model
        self._request = request
        self._audio = audio
        self._at = 0
        parameters = inspect.signature(model.generate).parameters
        self._arguments = arguments(request, parameters)
        self.language = request.language
        self.over = False
        self.tokens = 0

    def step(self) -> list[Piece]:
        rate = self._audio.rate
        samples = self._audio.window(self._at, WINDOW_S * rate)
        if not len(samples):
            self.over = True
            return []
        if len(samples) == WINDOW_S * rate:
            samples = samples[: quietest(samples, rate)]
        start_s = self._at / rate
        self._at += len(samples)
        if is_silent(samples):
            return []
        result = self._model.generate(mx.array(samples), **self._arguments)
        pieces = pieces_of(result, start_s, len(samples) / rate)
        self.tokens += tokens_of(result)
        self.language = self.language or language_of(result)
        return [self._spaced(piece) for piece in pieces]

    def _spaced(self, piece: Piece) -> Piece:
        """So that the texts of all segments make one text when they are joined."""
        if piece.text[:1].isspace() or self.language in _WITHOUT_SPACES:
            return piece
        return replace(piece, text=f" {piece.text}")


_WITHOUT_SPACES = frozenset({"zh", "ja", "yue", "th", "lo", "my", "km"})


def arguments(
    request: wire.Transcribe, parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """What of a request this model's `generate` takes. Raises `EngineError` for a translation that
    it cannot make."""
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    given: dict[str, Any] = {"temperature": request.temperature, "verbose": False, "stream": False}
    if request.language is not None:
        given |= {"language": request.language, "source_lang": request.language}
        given["target_lang"] = request.language
    if request.translate:
        if not {"task", "target_lang"} & set(parameters):
            raise EngineError("unsupported", "this model cannot translate; it can transcribe")
        given |= {"task": "translate", "target_lang": "en"}
    if request.prompt:
        given |= dict.fromkeys(_PROMPTS, request.prompt)
    if mx.default_device() == mx.cpu:
        given["dtype"] = mx.float32
    taken = {name: value for name, value in given.items() if name in parameters}
    if request.words and (open_ended or "word_timestamps" in parameters):
        taken["word_timestamps"] = True  # many take it without naming it
    return taken


def quietest(samples: Samples, rate: int) -> int:
    """Where to cut: the middle of the quietest moment in the last seconds."""
    width = int(_QUIET_S * rate)
    tail = samples[-SEARCH_S * rate :]
    blocks = tail[: len(tail) // width * width].reshape(-1, width)
    quiet = int(np.argmin(np.square(blocks).mean(axis=1)))
    return len(samples) - len(tail) + quiet * width + width // 2
