"""The transcription engine on mlx-audio: audio files in, segments of text out.

Owned and driven by the work thread, like everything of this package. Calls take turns, one window
or one attempt at one for each step, so a long file delays others by a window at most, and a cancel
takes effect at the next boundary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import mlx.core as mx

from engines import wire
from engines.base import Emit, EngineError, Plain, Report, refuse_kind
from engines.text.limits import DeviceMemory, Mlx
from engines.transcription.audio import Audio, open_audio
from engines.transcription.decoders import unreadable
from engines.transcription.model import LoadedModel, load
from engines.transcription.pieces import Piece, Run
from engines.transcription.whisper import WhisperRun
from engines.transcription.windows import WindowRun

_log = logging.getLogger(__name__)

MOST_OPEN = 8
"""Calls that take turns; each has a file open, and maybe an ffmpeg. Others wait."""

Load = Callable[[wire.EngineSpec, Report], LoadedModel]


@dataclass(slots=True)
class _Call:
    """`run` and `audio` are there once it has begun."""

    request: wire.Transcribe
    submitted_at: float
    started_at: float | None = None
    audio: Audio | None = None
    run: Run | None = None
    texts: list[str] = field(default_factory=list)

    def close(self) -> None:
        if self.audio is not None:
            self.audio.close()


class TranscriptionEngine(Plain):
    """Implements `engines.base.Engine`. Before `load`, and after `close`, it holds nothing."""

    def __init__(
        self,
        spec: wire.EngineSpec,
        limits: wire.Limits,
        emit: Emit,
        mlx: Mlx = mx,
        load: Load = load,
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._memory = DeviceMemory(mlx, limits)
        self._load = load
        self._loaded: LoadedModel | None = None
        self._calls: dict[int, _Call] = {}

    def load(self, report: Report) -> wire.Ready:
        """Loads the model, reporting each stage before it starts. Raises `LoadError`."""
        try:
            self._memory.before_load()
            self._loaded = self._memory.construct(lambda: self._load(self._spec, report))
        except BaseException:
            # Nobody closes an engine that was never ready, and `report` may ask it to stop.
            self._memory.leave_thread()
            raise
        return wire.Ready(
            self._loaded.context_length,
            self.memory(),
            dict(self._memory.applied),
            modalities=("audio",),
        )

    def submit(self, request: wire.Request) -> None:
        """Takes a call in. Raises `EngineError`, taking nothing."""
        if not isinstance(request, wire.Transcribe):
            raise refuse_kind(request, "transcription")
        self._calls[request.id] = _Call(request, monotonic())

    def answer(self, question: wire.Ask) -> wire.Answer:
        """A cache that there is not is empty. Raises `EngineError` for any other question."""
        if isinstance(question, wire.ClearCache):
            return wire.Cleared(question.id, 0, 0)
        raise EngineError("unsupported", "this model is for transcription; it takes no text")

    def cancel(self, call_id: int) -> None:
        """Ends a call with `Failed(code="cancelled")`; an unknown id is not an error."""
        if call_id in self._calls:
            self._fail(call_id, "cancelled", "the call was cancelled")

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    @property
    def running(self) -> int:
        return sum(call.run is not None for call in self._calls.values())

    @property
    def waiting(self) -> int:
        return len(self._calls) - self.running

    def step(self) -> None:
        """One step of the call whose turn it is; a failure of it is its alone."""
        call_id, call = self._next()
        try:
            self._advance(call)
        except EngineError as error:
            self._fail(call_id, error.code, str(error))
        except Exception as error:  # noqa: BLE001  calls share only weights, which nobody changes
            _log.exception("call %d failed inside the model", call_id)
            self._fail(call_id, "engine_error", f"{type(error).__name__}: {error}")

    def idle(self) -> None:
        """Gives freed buffers back to the system."""
        self._memory.give_back()

    def set_limits(self, limits: wire.Limits) -> None:
        """Applies new byte limits at once; running calls go on."""
        if self._loaded is None:
            self._memory.limits = limits
        else:
            self._memory.change(limits)

    def memory(self) -> wire.Memory:
        weights = 0 if self._loaded is None else self._loaded.weights_bytes
        return wire.Memory(weights_bytes=weights, mlx_cache_bytes=self._memory.cached_bytes)

    def close(self) -> None:
        """Drops calls and model without an event; the process ends after it."""
        for call in self._calls.values():
            call.close()
        self._calls.clear()
        self._loaded = None
        self._memory.leave_thread()

    # --- one call -------------------------------------------------------------------------------

    def _next(self) -> tuple[int, _Call]:
        """Goes round the first calls: whoever has had a turn goes to the end of these."""
        call_id = next(iter(self._calls))
        call = self._calls.pop(call_id)
        waiting = list(self._calls.items())
        self._calls = dict([*waiting[: MOST_OPEN - 1], (call_id, call), *waiting[MOST_OPEN - 1 :]])
        return call_id, call

    def _advance(self, call: _Call) -> None:
        if call.run is None:
            self._begin(call)
            return
        for piece in call.run.step():
            self._emit(_segment(call.request.id, len(call.texts), piece))
            call.texts.append(piece.text)
        if call.run.over:
            self._finish(call, call.run)

    def _begin(self, call: _Call) -> None:
        assert self._loaded is not None
        loaded, request = self._loaded, call.request
        call.audio = open_audio(request.audio, loaded.rate)
        # Whatever is wrong with the file shows here, before anything is said.
        call.audio.window(0, loaded.rate)
        build: Any = WhisperRun if loaded.whisper else WindowRun
        call.run = build(loaded.model, request, call.audio)
        call.started_at = monotonic()
        self._emit(wire.Started(request.id, 0))

    def _finish(self, call: _Call, run: Run) -> None:
        assert call.audio is not None
        assert call.started_at is not None
        if call.audio.silent:
            raise unreadable("it is silent: nothing can be heard in it")
        call_id, now = call.request.id, monotonic()
        language = "en" if call.request.translate else run.language
        text = "".join(call.texts).strip()
        self._emit(wire.Transcript(call_id, text, language, call.audio.seconds))
        del self._calls[call_id]
        call.close()
        timings = wire.Timings(
            queue_s=call.started_at - call.submitted_at, decode_s=now - call.started_at
        )
        self._emit(wire.Finished(call_id, wire.Usage(0, run.tokens), timings))

    def _fail(self, call_id: int, code: wire.FailureCode, message: str) -> None:
        self._calls.pop(call_id).close()
        self._emit(wire.Failed(call_id, code, message))


def _segment(call_id: int, index: int, piece: Piece) -> wire.Segment:
    return wire.Segment(
        call_id,
        index,
        piece.start_s,
        piece.end_s,
        piece.text,
        piece.words,
        piece.tokens,
        piece.temperature,
        piece.avg_logprob,
        piece.compression_ratio,
        piece.no_speech_prob,
    )
