"""The speech of a scripted model: a tone for every word, through the real formats and credits.

The words are those of the input, or of the script that the input is. A word lasts `WORD_S` at
speed 1, so the length of the audio is known, and its pitch goes by its length and by the voice.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from engines import script, wire
from engines.base import Emit
from engines.speech.delivery import WAIT_S, Delivery, DeliveryError
from engines.speech.formats import PCM_RATE, encoder_for
from engines.speech.voices import chosen
from engines.words import words

VOICES = ("alto", "bass")
WORD_S = 0.25

_PITCHES_HZ = {"alto": 440.0, "bass": 110.0}
_LOUDNESS = 8000
_NO_LIMIT = 2**62


class Clock(Protocol):
    def now(self) -> float: ...
    def wait(self, seconds: float) -> None: ...


@dataclass(slots=True)
class _Call:
    """One running call; `due` is when it has its next word."""

    id: int
    reply: script.Reply
    delivery: Delivery
    voice: str
    speed: float
    submitted_at: float
    due: float
    spoke: bool = False
    ended: bool = False


class Speeches:
    """The running `Speak` calls of a scripted engine, `words_per_s` of each (None: at once).

    `exit_next` has the process end at its next step.
    """

    def __init__(
        self, clock: Clock, emit: Emit, exit_next: Callable[[int], None], words_per_s: float | None
    ) -> None:
        self._clock = clock
        self._emit = emit
        self._exit_next = exit_next
        self._words_per_s = words_per_s
        self._calls: dict[int, _Call] = {}

    @property
    def running(self) -> int:
        return len(self._calls)

    def submit(self, request: wire.Speak) -> None:
        """Raises `EngineError`, taking nothing."""
        told = script.script_in([{"role": "user", "content": request.text}])
        if told is None:
            told = script.Script([script.Say(word) for word in words(request.text)])
        voice = chosen(request.voice, VOICES, VOICES[0]) or VOICES[0]
        encoder = encoder_for(request.format, PCM_RATE)
        now = self._clock.now()
        self._calls[request.id] = _Call(
            id=request.id,
            reply=script.Reply(told, _NO_LIMIT),
            delivery=Delivery(request.id, encoder, self._emit),
            voice=voice.partition(",")[0],
            speed=request.speed,
            submitted_at=now,
            due=now,
        )

    def credit(self, call_id: int, nbytes: int) -> None:
        if call_id in self._calls:
            self._calls[call_id].delivery.credit(nbytes)

    def cancel(self, call_id: int) -> None:
        if call_id in self._calls:
            self._fail(self._calls[call_id], "cancelled", "the call was cancelled")

    def step(self) -> None:
        """One word of every call that is due, else a short wait."""
        now = self._clock.now()
        moved = [self._advance(call, now) for call in list(self._calls.values())]
        if any(moved) or not self._calls:
            return
        working = [call for call in self._calls.values() if not call.delivery.paused]
        for call in working:
            if call.ended or not call.delivery.hungry:  # its encoder is at work
                self._deliver(call, WAIT_S)
                return
        due = min((call.due for call in working), default=now + WAIT_S)
        self._clock.wait(min(max(0.0, due - now), WAIT_S))

    def close(self) -> None:
        for call in list(self._calls.values()):
            self._forget(call)

    def _advance(self, call: _Call, now: float) -> bool:
        """Whether anything happened."""
        self._deliver(call)
        if call.id not in self._calls:
            return True
        if call.ended or call.due > now or not call.delivery.hungry:
            return False
        match call.reply.advance():
            case script.Said() as said:
                self._say(call, said, now)
            case script.Sleep(seconds):
                call.due = now + seconds
            case script.Raise(text):
                self._fail(call, "engine_error", text)
            case script.Exit(code):
                self._exit_next(code)
        return True

    def _say(self, call: _Call, said: script.Said, now: float) -> None:
        spoken = [word for text, _ in said.pieces for word in words(text) if word.strip()]
        for word in spoken:
            call.delivery.give(tone(call.voice, len(word.strip()) % 12, call.speed))
            call.spoke = True
        if said.end is not None:
            if not call.spoke:
                self._fail(call, "invalid_request", "input: there is nothing in it to speak")
                return
            call.delivery.end()
            call.ended = True
        elif self._words_per_s is not None:
            interval = len(spoken) / self._words_per_s
            call.due = max(call.due, now - interval) + interval
        self._deliver(call)

    def _deliver(self, call: _Call, wait_s: float = 0.0) -> None:
        try:
            call.delivery.advance(wait_s)
        except DeliveryError as error:
            self._fail(call, "engine_error", str(error))
            return
        if call.ended and call.delivery.over:
            self._forget(call)
            timings = wire.Timings(decode_s=self._clock.now() - call.submitted_at)
            self._emit(wire.Finished(call.id, wire.Usage(call.reply.tokens, 0), timings))

    def _fail(self, call: _Call, code: wire.FailureCode, message: str) -> None:
        self._forget(call)
        self._emit(wire.Failed(call.id, code, message))

    def _forget(self, call: _Call) -> None:
        del self._calls[call.id]
        call.delivery.close()


@lru_cache(64)
def tone(voice: str, step: int, speed: float) -> bytes:
    """16-bit samples of one word: `step` semitones above the pitch of the voice."""
    pitch = _PITCHES_HZ[voice] * 2 ** (step / 12)
    count = round(WORD_S * PCM_RATE / speed)
    turn = 2 * math.pi * pitch / PCM_RATE
    samples = (round(_LOUDNESS * math.sin(turn * at)) for at in range(count))
    return struct.pack(f"<{count}h", *samples)
