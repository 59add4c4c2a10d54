"""Reading a body under a cap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api import body
from gateway.api.body import discard_body, read_body
from gateway.errors import BodyTooLarge, ClientGone, InvalidRequest
from gateway.server import Receive, Scope

pytestmark = pytest.mark.anyio

DISCONNECT = {"type": "http.disconnect"}


def scope(**headers: str) -> Scope:
    lines = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return {"headers": lines}


class Client:
    """Sends these messages, and then nothing more."""

    def __init__(self, *chunks: bytes, ends: bool = True) -> None:
        self.messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
        ]
        if ends:
            self.messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def __call__(self) -> dict[str, Any]:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)


async def test_a_body_is_joined_up_to_the_cap() -> None:
    assert await read_body(scope(), Client(b"ab", b"", b"cd"), 4) == b"abcd"
    assert await read_body(scope(content_length="4"), Client(b"abcd"), 4) == b"abcd"
    assert await read_body(scope(content_length="0"), Client(), 4) == b""


async def test_a_declared_length_over_the_cap_is_refused_unread() -> None:
    client = Client(b"abcde")
    with pytest.raises(BodyTooLarge, match=r"limit of 1 MiB \(server\.max_body_mb"):
        await read_body(scope(content_length=str(2**20 + 1)), client, 2**20)
    assert len(client.messages) == 2


async def test_a_body_that_grows_over_the_cap_is_refused_there() -> None:
    client = Client(b"abc", b"de", b"f")
    with pytest.raises(BodyTooLarge):
        await read_body(scope(content_length="what"), client, 4)
    assert len(client.messages) == 2  # no more was read than it took


async def test_a_client_that_leaves_is_gone() -> None:
    client = Client(b"abc", ends=False)
    client.messages.append(DISCONNECT)
    with pytest.raises(ClientGone):
        await read_body(scope(), client, 4)


async def test_a_client_that_stalls_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "READ_TIMEOUT_S", 0.01)
    with pytest.raises(InvalidRequest, match=r"stalled for 0\.01 s"):
        await read_body(scope(), Client(b"abc", ends=False), 4)


@pytest.mark.parametrize("last", [DISCONNECT, {"type": "http.request", "body": b"x"}])
async def test_what_comes_after_a_refusal_is_read_to_its_end(last: dict[str, Any]) -> None:
    client = Client(b"abc", b"def", ends=False)
    client.messages.append(last)
    receive: Receive = client
    await discard_body(receive)
    assert client.messages == []


async def test_what_never_ends_is_read_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "LINGER_S", 0.01)
    client = Client(b"abc", ends=False)
    await discard_body(client)
    assert client.messages == []
