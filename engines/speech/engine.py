"""The speech engine: texts in, audio files out, piece by piece.

Owned and driven by the work thread. The calls take turns: one piece of text of one call, about a
sentence, is spoken at a time, and a call gets its next turn only when its listener has taken
everything that its last one made. A cancel acts between two chunks of audio.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import mlx.core as mx
import numpy as np

from engines import wire
from engines.base import Emit, EngineError, Plain, Report, refuse_kind
from engines.speech.delivery import WAIT_S, Delivery, DeliveryError
from engines.speech.formats import encoder_for, rate_of
from engines.speech.model import Chunk, LoadedSpeech, Voiced, load
from engines.speech.resample import Resampler, Samples
from engines.speech.sentences import pieces_of
from engines.text.limits import DeviceMemory, Mlx

LoadSpeech = Callable[[wire.EngineSpec, Report], LoadedSpeech]


@dataclass(slots=True)
class _Call:
    """One running call; `chunks` is its piece of text that is being spoken."""

    id: int
    voiced: Voiced
    delivery: Delivery
    resampler: Resampler | None
    pieces: deque[str]
    submitted_at: float
    chunks: Iterator[Chunk] | None = None
    started_at: float | None = None
    spoken_s: float = 0.0
    tokens: int = 0
    samples: int = 0
    ended: bool = False

    @property
    def wants_turn(self) -> bool:
        return self.chunks is not None or (self.delivery.hungry and bool(self.pieces))


class SpeechEngine(Plain):
    """Implements `engines.base.Engine`. Before `load`, and after `close`, it holds nothing."""

    def __init__(
        self,
        spec: wire.EngineSpec,
        limits: wire.Limits,
        emit: Emit,
        mlx: Mlx = mx,
        load_speech: LoadSpeech = load,
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._memory = DeviceMemory(mlx, limits)
        self._load_speech = load_speech
        self._speech: LoadedSpeech | None = None
        self._calls: dict[int, _Call] = {}

    def load(self, report: Report) -> wire.Ready:
        """Loads the model, reporting each stage before it starts. Raises `LoadError`."""
        try:
            self._memory.before_load()
            speech = self._speech = self._load_speech(self._spec, report)
        except BaseException:
            # Nobody closes an engine that was never ready, and `report` may ask it to stop.
            self._memory.leave_thread()
            raise
        return wire.Ready(
            context_length=0,
            memory=self.memory(),
            applied=dict(self._memory.applied),
            voices=speech.voices,
        )

    # --- calls ----------------------------------------------------------------------------------

    def submit(self, request: wire.Request) -> None:
        """Takes a call in. Raises `EngineError`, taking nothing."""
        if not isinstance(request, wire.Speak):
            raise refuse_kind(request, "speech")
        speech = self._speech
        if speech is None:
            raise EngineError("engine_error", "no model is loaded")
        voiced = speech.check(request)
        pieces = deque(pieces_of(request.text))
        if not pieces:
            raise EngineError("invalid_request", "input: there is nothing in it to speak")
        rate = rate_of(request.format, speech.rate)
        delivery = Delivery(request.id, encoder_for(request.format, rate), self._emit)
        resampler = Resampler(speech.rate, rate) if rate != speech.rate else None
        self._calls[request.id] = _Call(
            request.id, voiced, delivery, resampler, pieces, submitted_at=monotonic()
        )

    def answer(self, question: wire.Ask) -> wire.Answer:
        """There are no tokens to ask for. Raises `EngineError`."""
        if isinstance(question, wire.ClearCache):
            return wire.Cleared(question.id, 0, 0)
        raise EngineError("unsupported", "a speech model has no tokens to count or to show")

    def credit(self, call_id: int, nbytes: int) -> None:
        if call_id in self._calls:
            self._calls[call_id].delivery.credit(nbytes)

    def cancel(self, call_id: int) -> None:
        """Ends a call with `Failed(code="cancelled")`; an unknown id is not an error."""
        if call_id in self._calls:
            cancelled = EngineError("cancelled", "the call was cancelled")
            self._fail(self._calls[call_id], cancelled)

    def step(self) -> None:
        """Sends what can be sent, then makes one chunk of audio, else waits for a moment."""
        for call in list(self._calls.values()):
            self._deliver(call)
        turn = self._next_turn()
        if turn is not None:
            self._speak(turn)
            return
        if not self._calls:
            return
        # Steps go on while all listeners are slow: they tell that this thread is not stuck.
        for call in self._calls.values():
            if not call.delivery.paused:
                self._deliver(call, WAIT_S)
                return
        time.sleep(WAIT_S)

    def _next_turn(self) -> _Call | None:
        """A piece that has begun goes on; then whoever has waited longest for a turn."""
        wanting = [call for call in self._calls.values() if call.wants_turn]
        begun = (call for call in wanting if call.chunks is not None)
        return next(begun, wanting[0] if wanting else None)

    def _speak(self, call: _Call) -> None:
        assert self._speech is not None
        began = monotonic()
        if call.started_at is None:
            call.started_at = began
        if call.chunks is None:
            call.chunks = self._speech.speak(call.pieces.popleft(), call.voiced)
            # Behind all others now, whose turn comes first.
            self._calls[call.id] = self._calls.pop(call.id)
        try:
            chunk = next(call.chunks, None)
        except EngineError as error:
            self._fail(call, error)
            return
        except Exception as error:  # noqa: BLE001  a model may raise anything over a text
            traceback.print_exc(file=sys.stderr)
            message = f"the model failed: {type(error).__name__}: {str(error)[:300]}"
            self._fail(call, EngineError("engine_error", message))
            return
        call.spoken_s += monotonic() - began
        if chunk is not None:
            call.tokens += chunk.tokens
            self._give(call, chunk.samples)
        else:
            call.chunks = None
            if not call.pieces:
                self._end(call)
        self._deliver(call)

    def _give(self, call: _Call, samples: Samples) -> None:
        call.samples += len(samples)
        if call.resampler is not None:
            samples = call.resampler.add(samples)
        call.delivery.give(pcm16(samples))

    def _end(self, call: _Call) -> None:
        if not call.samples:
            error = EngineError("invalid_request", "input: the model finds nothing in it to speak")
            self._fail(call, error)
            return
        if call.resampler is not None:
            call.delivery.give(pcm16(call.resampler.flush()))
        call.delivery.end()
        call.ended = True

    def _deliver(self, call: _Call, wait_s: float = 0.0) -> None:
        if call.id not in self._calls:
            return
        try:
            call.delivery.advance(wait_s)
        except DeliveryError as error:
            self._fail(call, EngineError("engine_error", str(error)))
            return
        if call.ended and call.delivery.over:
            self._forget(call)
            started_at = call.started_at or call.submitted_at
            timings = wire.Timings(queue_s=started_at - call.submitted_at, decode_s=call.spoken_s)
            self._emit(wire.Finished(call.id, wire.Usage(call.tokens, 0), timings))

    def _fail(self, call: _Call, error: EngineError) -> None:
        self._forget(call)
        self._emit(wire.Failed(call.id, error.code, str(error), error.retryable))

    def _forget(self, call: _Call) -> None:
        del self._calls[call.id]
        call.chunks = None  # drops what the model has begun
        call.delivery.close()

    # --- the rest of the contract ---------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    @property
    def running(self) -> int:
        return len(self._calls)

    @property
    def waiting(self) -> int:
        return 0

    def idle(self) -> None:
        """Gives freed buffers back to the system."""
        self._memory.give_back()

    def set_limits(self, limits: wire.Limits) -> None:
        """Applies new byte limits at once; running calls go on."""
        if self._speech is None:
            self._memory.limits = limits
        else:
            self._memory.change(limits)

    def memory(self) -> wire.Memory:
        weights = self._speech.weights_bytes if self._speech is not None else 0
        return wire.Memory(weights_bytes=weights, mlx_cache_bytes=self._memory.cached_bytes)

    def close(self) -> None:
        """Drops calls and model; no ffmpeg outlives it."""
        for call in list(self._calls.values()):
            self._forget(call)
        self._speech = None
        self._memory.leave_thread()


def pcm16(samples: Samples) -> bytes:
    """Floats from -1 to 1 as 16-bit little-endian integers; what is beyond is clipped."""
    scaled = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0)
    data: bytes = scaled.astype("<i2").tobytes()
    return data
