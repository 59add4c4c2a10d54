"""What the journal writes of things that no end-to-end test can bring about at will."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines import wire
from gateway.api.events import EventBus
from gateway.journal import RELOAD_LINES, Journal
from gateway.metrics import Metrics
from gateway.registry.find import Model
from gateway.registry.load import Loaded
from gateway.registry.remembered import Remembered
from gateway.registry.schema import Entry, Server
from gateway.registry.sizes import Size
from gateway.residency import ModelSpec, Policy, Scheduler, SetLimits
from gateway.router import Router
from gateway.rundir import RunDir
from gateway.served import Live, Served
from gateway.supervisor.tasks import Tasks

pytestmark = pytest.mark.anyio


class Written:
    """A journal and one follower of everything."""

    def __init__(self, folder: Path) -> None:
        self.metrics, bus = Metrics(), EventBus()
        self.subscription = bus.subscribe()
        live = Live(Served(Loaded(), Router([]), Server()))
        sizes = Remembered(folder / "sizes.json")
        self.run_dir = RunDir(folder / "run")
        self.journal = Journal(self.metrics, live, self.run_dir, sizes, Tasks(), bus)
        self.run_dir.close()

    async def events(self) -> list[dict[str, Any]]:
        async with asyncio.timeout(30):
            frames = await self.subscription.batch(0.01)
        return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


async def test_memory_is_written_down_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    written = Written(tmp_path)
    calm = Scheduler(Policy(1), [ModelSpec("a", 1)]).snapshot(0)
    over = replace(calm, ledger=replace(calm.ledger, overcommitted="'a' uses 3 B more"))
    pressed = replace(over, pressure="critical")
    for snapshot in (calm, over, over, pressed, calm, calm):
        written.journal.memory(snapshot)
    assert [(e["pressure"], e["overcommitted"]) for e in await written.events()] == [
        ("normal", "'a' uses 3 B more"),
        ("critical", "'a' uses 3 B more"),
        ("normal", None),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert "pressure critical; 'a' uses 3 B more" in caplog.text


async def test_stranded_memory_and_shrunk_caches_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    written = Written(tmp_path)
    written.journal.stranded("a", 3 * 10**9)
    written.journal.limited(SetLimits("a", 0))
    written.journal.limited(SetLimits("a", 2 * 10**9))
    assert [event["type"] for event in await written.events()] == ["stranded", "limits", "limits"]
    assert b'prompt_cache_shrinks_total{model="a"} 1.0' in written.metrics.page()
    for words in ("2.8 GiB of its memory have not come back", "may take 0 B", "may take 1.9 GiB"):
        assert words in caplog.text


async def test_a_long_reload_is_cut_for_events_and_not_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = Written(tmp_path)
    written.journal.reloaded("refused", [f"problem {number}." for number in range(80)])
    (event,) = await written.events()
    assert (event["result"], len(event["lines"])) == ("refused", RELOAD_LINES)
    assert "problem 79." in caplog.text
    assert b'reloads_total{outcome="refused"} 1.0' in written.metrics.page()


async def test_a_load_that_ends_while_sizes_are_saved_is_saved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path)
    in_save, go_on = threading.Event(), threading.Event()
    save = Remembered.save

    def held(sizes: Remembered) -> str | None:
        problem = save(sizes)
        in_save.set()
        assert go_on.wait(30)
        return problem

    monkeypatch.setattr(Remembered, "save", held)
    ready = wire.Ready(1, wire.Memory(weights_bytes=10, process_bytes=12))
    written.journal.loaded(model("a"), ready, 1.0)
    assert await asyncio.to_thread(in_save.wait, 30)
    written.journal.loaded(model("b"), ready, 1.0)
    go_on.set()
    saving = written.journal._saving
    assert saving is not None
    async with asyncio.timeout(30):
        await saving
    assert written.journal._saving is None
    assert set(json.loads((tmp_path / "sizes.json").read_bytes())["sizes"]) == {"a-text", "b-text"}


def model(fingerprint: str) -> Model:
    size = Size(weights_bytes=10, kind="text", fingerprint=fingerprint)
    return Model(entry=Entry(name=fingerprint, path="/x", kind="text"), size=size)


async def test_the_last_event_is_the_last(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.journal.draining(7)
    written.journal.closed()
    written.journal.pinned("a", True, None)
    draining, end = await written.events()
    assert (draining["type"], draining["seconds"], end["type"]) == ("draining", 7, "end")
    assert written.subscription.over


async def test_pids_are_kept_beside_the_loop_and_the_last_ones_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path)
    in_write, go_on = threading.Event(), threading.Event()
    write = RunDir.write_engines

    def held(run_dir: RunDir, engines: list[tuple[int, float]]) -> None:
        in_write.set()
        assert go_on.wait(30)
        write(run_dir, engines)

    monkeypatch.setattr(RunDir, "write_engines", held)
    written.journal.spawned(os.getpid())
    assert await asyncio.to_thread(in_write.wait, 30)
    written.journal.spawned(os.getppid())  # while the disk is slow
    written.journal.reaped(os.getpid())
    keeping = written.journal._keeping
    assert keeping is not None
    go_on.set()
    async with asyncio.timeout(30):
        await keeping
    assert [pid for pid, _ in written.run_dir.engines()] == [os.getppid()]


async def test_once_the_run_directory_is_cleared_nothing_comes_back(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.run_dir.clear()
    written.journal.spawned(os.getpid())
    keeping = written.journal._keeping
    assert keeping is not None
    async with asyncio.timeout(30):
        await keeping
    assert not (tmp_path / "run" / "engines.json").exists()
