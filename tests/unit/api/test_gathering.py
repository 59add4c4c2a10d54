"""What a request's media need has the request's own time, and leaves nothing when that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.api import media
from gateway.api.chat import decode
from gateway.api.deadline import Deadline, deadline_of
from gateway.api.gathering import Gathering, Place
from gateway.api.media import Media
from gateway.errors import RequestTimeout
from gateway.registry.find import Model
from gateway.registry.load import Loaded
from gateway.registry.schema import Entry, Server
from gateway.router import Router
from gateway.security.media import sweep
from gateway.served import Served
from gateway.supervisor.supervisor import Supervisor

BODY = b"""{"model": "m", "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "http://images.example/1.png"}}]}]}"""


class Nothing:
    """A supervisor without engines."""

    slots: Mapping[str, Any] = {}


@pytest.mark.anyio
async def test_the_clients_own_time_counts_for_its_media(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*args: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(media, "fetch_media", endless)
    sweep(folder := tmp_path / "media")
    model = Model(entry=Entry(name="m", path="/m", kind="vision"))
    served = Served(Loaded(), Router([model]), Server())
    now = asyncio.get_running_loop().time()
    place = Place(model, served, deadline_of(now, 0.05, Server()))
    gathering = Gathering(Media(folder), cast(Supervisor, Nothing()))
    scope: dict[str, Any] = {"state": {}}

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()

    with pytest.raises(RequestTimeout, match=r"timeout of 0\.05 s"):
        await gathering.gather(decode(BODY), place, scope, receive)
    assert list(folder.iterdir()) == []
    assert scope["state"]["cancel"] is None


def test_the_clients_time_goes_before_the_operators() -> None:
    patient = Server(request_timeout_s=60)
    assert deadline_of(10, 5, patient) == Deadline(15, 5)
    assert deadline_of(10, None, patient) == Deadline(70, 60)
    assert deadline_of(10, None, Server()) == Deadline()
    Deadline().check(10**9)
    Deadline(15, 5).check(14.9)
    with pytest.raises(RequestTimeout, match="timeout of 5 s"):
        Deadline(15, 5).check(15)
