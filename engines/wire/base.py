"""What every message is: its base classes and the bounds of a frame."""

from __future__ import annotations

import msgspec

WIRE_VERSION = 2

MAX_REQUEST_BYTES = 8 * 2**20
"""A larger `Generate` is refused by the gateway with a 413 before it is sent."""

MAX_EVENT_BYTES = 2 * 2**20
"""A larger frame from an engine is a protocol error that ends that engine."""

FD_VARIABLE = "MLX_GATEWAY_ENGINE_FD"
TOKEN_VARIABLE = "MLX_GATEWAY_ENGINE_TOKEN"
"""How a worker learns its end of the socket pair and the token that its `Hello` must repeat."""

IMPORT_VARIABLE = "MLX_GATEWAY_ENGINE_IMPORT"
"""An `EngineSpec.engine`: its libraries are imported before any `Load`; one `Loading` tells."""

MAX_PART_BYTES = 2**20
"""Vectors and audio travel in pieces of at most this."""

SPEECH_CREDIT_BYTES = 2**20
"""What a `Speak` may send before any `Credit`: 20 seconds of uncompressed speech. It is less than
a call's mailbox takes, so no listener is too slow for the mailbox alone."""


class WireError(Exception):
    """The peer broke the protocol; the connection cannot be used any further."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of everything that travels in a frame."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what is nested inside a message."""
