"""The voices of a model that is not loaded: its folder is looked at, and may be on no volume."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gateway.api import speech
from gateway.api.speech import Voices
from gateway.errors import Unavailable
from gateway.registry.find import Model
from gateway.registry.load import Loaded
from gateway.registry.schema import Entry, Server
from gateway.router import Router
from gateway.security.keys import LOCAL
from gateway.served import Live, Served
from tests.harness.in_process import in_process


@pytest.mark.anyio
async def test_a_volume_that_has_gone_takes_one_thread_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()
    looks: list[Path] = []
    sent: list[MutableMapping[str, Any]] = []

    def look(folder: Path) -> tuple[str, ...]:
        looks.append(folder)
        assert back.wait(60)
        return ("alto",)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    monkeypatch.setattr(speech, "voices_in", look)
    monkeypatch.setattr(speech, "LOOK_S", 0.05)
    model = Model(entry=Entry(name="m", path=str(tmp_path), kind="speech"), path=tmp_path)
    live = Live(Served(Loaded(), Router([model]), Server()))
    scope = {"state": {"access": LOCAL}, "query_string": b"", "headers": []}
    async with in_process((model,), 2**34) as rig:
        voices = Voices(live, rig.supervisor)
        try:
            for _ in range(3):
                with pytest.raises(Unavailable, match="sleeps, or has gone"):
                    await voices(scope, receive, send)
            assert looks == [tmp_path]
            monkeypatch.setattr(speech, "LOOK_S", 30)
            answer = asyncio.ensure_future(voices(scope, receive, send))
            await asyncio.sleep(0)
        finally:
            back.set()
        await answer
    assert json.loads(sent[1]["body"])["voices"] == ["alto"]
