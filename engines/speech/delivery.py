"""One call's audio on its way out: samples in, `Bytes` within the credit out.

Used by the speech engine and by the scripted one. A listener that takes nothing gives no credit;
what has been made then stays here, and no more is asked for until it is gone, so the most that is
ever held is what one segment of the text makes.
"""

from __future__ import annotations

from engines import wire
from engines.base import Emit
from engines.ffmpeg import FfmpegError
from engines.speech.formats import AudioEncoder

PIECE_BYTES = 2**16
"""Of one `Bytes` at most: credit comes back piece by piece, and so does news of progress."""

WAIT_S = 0.05
"""How long one step waits when there is nothing else to do: a cancel acts between two steps."""


class DeliveryError(Exception):
    """The audio could not be encoded; the message says why."""


class Delivery:
    """Takes ownership of `encoder`. `close` in any case."""

    def __init__(self, call_id: int, encoder: AudioEncoder, emit: Emit) -> None:
        self._id = call_id
        self._encoder = encoder
        self._emit = emit
        self._credit = wire.SPEECH_CREDIT_BYTES
        self._out = bytearray()
        self._seq = 0

    @property
    def hungry(self) -> bool:
        """Whether everything that was given has left, so that more is wanted."""
        return self._encoder.idle and not self._out

    @property
    def over(self) -> bool:
        """Whether everything has left, after `end`."""
        return self._encoder.over and not self._out

    @property
    def paused(self) -> bool:
        """Whether only the listener can move it on."""
        return bool(self._out) and not self._credit

    def credit(self, nbytes: int) -> None:
        """The listener has taken so many bytes."""
        self._credit += max(0, nbytes)

    def give(self, samples: bytes) -> None:
        """16-bit samples; only when it is `hungry`."""
        self._encoder.give(samples)

    def end(self) -> None:
        self._encoder.end()

    def advance(self, wait_s: float = 0.0) -> None:
        """Sends what there is credit for. Raises `DeliveryError`."""
        if not self.paused:
            try:
                self._out += self._encoder.pump(wait_s)
            except FfmpegError as error:
                raise DeliveryError(str(error)) from error
        while self._out and self._credit:
            size = min(PIECE_BYTES, self._credit, len(self._out))
            self._emit(wire.Bytes(self._id, self._seq, bytes(self._out[:size])))
            del self._out[:size]
            self._seq += 1
            self._credit -= size

    def close(self) -> None:
        self._encoder.close()
        self._out.clear()
