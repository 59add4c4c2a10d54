"""How the reloader ends when a volume it reads has gone: no end-to-end test has such a volume."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from gateway import reload
from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.reload import Read, Reloader
from gateway.router import Router
from gateway.served import Live, Served
from gateway.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.anyio


class Kept:
    """What was told of reloads."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def reloaded(self, outcome: str, lines: Iterable[str]) -> None:
        self.outcomes.append(outcome)


class Notes:
    def reloaded(self, outcome: str, lines: Iterable[str]) -> None:
        raise AssertionError(f"nothing can have been read: {outcome} {list(lines)}")


class Volume:
    """Everything that reads it stays until it is `back`."""

    def __init__(self) -> None:
        self.read_from = threading.Event()
        self.back = threading.Event()

    def read(self) -> Read:
        self.read_from.set()
        assert self.back.wait(60)
        return Read(None, ())

    def digest(self, path: Path) -> str:
        self.read()
        return "content"


@pytest.fixture
def volume() -> Iterator[Volume]:
    gone = Volume()
    yield gone
    gone.back.set()


@pytest.mark.parametrize("watched", [False, True])
async def test_a_volume_that_has_gone_keeps_nobody_from_stopping(
    watched: bool, volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "STOP_S", 0.05)
    monkeypatch.setattr(reload, "digest", volume.digest)
    live = Live(Served(Loaded(), Router([]), Server()))
    nobody = cast(Supervisor, None)  # no reload gets so far
    reloader = Reloader(volume.read, live, nobody, Notes())
    stop = asyncio.Event()
    running = asyncio.ensure_future(reloader.run(tmp_path / "file" if watched else None, stop))
    if not watched:
        reloader.ask("the test says so")
    assert await asyncio.to_thread(volume.read_from.wait, 30)
    stop.set()
    async with asyncio.timeout(30):
        await running


async def test_a_volume_that_has_gone_keeps_no_later_reload_from_its_turn(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "READ_S", 0.05)
    live = Live(Served(Loaded(), Router([]), Server()))
    notes = Kept()
    reloader = Reloader(volume.read, live, cast(Supervisor, None), notes)
    async with asyncio.timeout(30):
        first = await reloader.reload("the test says so")
        assert (first.result, first.problems) == ("refused", (reload.TOO_SLOW,))
        volume.back.set()
        monkeypatch.setattr(reload, "READ_S", 30)
        second = await reloader.reload("the test says so again")
    assert (second.result, second.problems) == ("refused", ())
    assert notes.outcomes == ["refused", "refused"]


async def test_asking_again_before_it_begins_changes_nothing(volume: Volume) -> None:
    live = Live(Served(Loaded(), Router([]), Server()))
    reloader = Reloader(volume.read, live, cast(Supervisor, None), Kept())
    for _ in range(1000):
        reloader.ask("SIGHUP")
    assert len(reloader._asked) == 1
