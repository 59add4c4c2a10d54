"""Reading a request body under a cap, without letting a slow or huge one cost anything."""

from __future__ import annotations

import asyncio

from gateway.errors import BodyTooLarge, ClientGone, InvalidRequest
from gateway.server import Receive, Scope

READ_TIMEOUT_S = 60.0
LINGER_S = 2.0


async def read_body(scope: Scope, receive: Receive, cap_bytes: int) -> bytes:
    """The whole body. Raises `BodyTooLarge`, `ClientGone`, `InvalidRequest` when it stalls.

    A declared length over the cap is refused before a byte is read; a body without a length is
    counted as it comes.
    """
    declared = content_length(scope)
    if declared is not None and declared > cap_bytes:
        raise _too_large(cap_bytes)
    chunks: list[bytes] = []
    total = 0
    while True:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                message = await receive()
        except TimeoutError:
            raise InvalidRequest(f"the body stalled for {READ_TIMEOUT_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left before its request was complete")
        chunk: bytes = message.get("body", b"")
        total += len(chunk)
        if total > cap_bytes:
            raise _too_large(cap_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def discard_body(receive: Receive) -> None:
    """Reads on for a moment after a refusal.

    A client that is still sending when its connection closes gets a reset and never sees why.
    """
    try:
        async with asyncio.timeout(LINGER_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return  # it had its moment


def content_length(scope: Scope) -> int | None:
    """What the request says of itself; None where it says nothing that is a number."""
    for name, value in scope["headers"]:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return None


def _too_large(cap_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body is larger than the limit of {cap_bytes / 2**20:g} MiB "
        "(server.max_body_mb in the registry)"
    )
