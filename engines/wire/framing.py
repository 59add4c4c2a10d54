"""Messages to frames and back. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Generic, TypeVar, cast

import msgspec

from engines.wire.base import MAX_EVENT_BYTES, MAX_REQUEST_BYTES, WireError
from engines.wire.tools import FromTool, ToTool
from engines.wire.unions import FromEngine, ToEngine

_HEADER = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()


def encode(message: ToEngine | FromEngine | ToTool | FromTool) -> bytes:
    """One frame, header included."""
    buffer = bytearray(_HEADER.size)
    _encoder.encode_into(message, buffer, _HEADER.size)
    _HEADER.pack_into(buffer, 0, len(buffer) - _HEADER.size)
    return bytes(buffer)


def encode_all(messages: Iterable[ToEngine | FromEngine]) -> bytes:
    """Several frames in one buffer, so that what is ready together is written together."""
    return b"".join(map(encode, messages))


_Incoming = TypeVar("_Incoming", ToEngine, FromEngine, ToTool, FromTool)


class Decoder(Generic[_Incoming]):
    """Frames from a stream of bytes, however they are cut.

    `max_frame` bounds one frame in bytes; a longer one, or one that does not decode, raises
    `WireError`, and the decoder must not be fed again.
    """

    def __init__(self, kind: Any, max_frame: int) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._max_frame = max_frame
        self._pending = b""

    def feed(self, data: bytes) -> list[_Incoming]:
        """Every message that `data` completes, in order."""
        if self._pending:
            data = self._pending + data
        messages: list[_Incoming] = []
        offset, end = 0, len(data)
        view = memoryview(data)
        while end - offset >= _HEADER.size:
            (length,) = _HEADER.unpack_from(data, offset)
            if length > self._max_frame:
                raise WireError(f"a frame of {length} bytes is over the limit of {self._max_frame}")
            start = offset + _HEADER.size
            if end - start < length:
                break
            offset = start + length
            messages.append(self._message(view[start:offset]))
        self._pending = data[offset:]
        return messages

    def _message(self, frame: memoryview) -> _Incoming:
        try:
            return cast(_Incoming, self._decode(frame))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"a frame that is no message: {error}") from error


def requests_decoder() -> Decoder[ToEngine]:
    """What an engine reads with."""
    return Decoder(ToEngine, MAX_REQUEST_BYTES + 2**16)


def events_decoder() -> Decoder[FromEngine]:
    """What the gateway reads with."""
    return Decoder(FromEngine, MAX_EVENT_BYTES)


def tasks_decoder() -> Decoder[ToTool]:
    """What `python -m engines.tools` reads with."""
    return Decoder(ToTool, MAX_REQUEST_BYTES)


def reports_decoder() -> Decoder[FromTool]:
    """What the command line reads with."""
    return Decoder(FromTool, MAX_EVENT_BYTES)
