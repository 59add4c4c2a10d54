"""The watcher of one file: when content counts as changed, and every way to save it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import watcher
from gateway.watcher import EMPTY_QUIET_S, MAX_SETTLE_S, QUIET_S, Look, Settling, digest, watch_file

PATIENCE_S = 30.0
EMPTY = digest(Path(os.devnull))


# --- the decision ---------------------------------------------------------------------------------


def test_content_counts_once_it_rests() -> None:
    settling = Settling("a")
    assert settling.see("b", 10.0).again_s == pytest.approx(QUIET_S)
    assert settling.see("b", 10.1).again_s == pytest.approx(QUIET_S - 0.1)
    assert settling.see("b", 10.0 + QUIET_S) == Look(changed=True)
    assert settling.see("b", 11.0) == Look()


def test_a_burst_counts_once_with_its_last_content() -> None:
    settling = Settling("a")
    looks = [settling.see(f"b{n}", n * 0.05) for n in range(10)]
    assert not any(look.changed for look in looks)
    assert settling.see("b9", 0.45 + QUIET_S).changed
    assert settling.known == "b9"


@pytest.mark.parametrize("content", ["a", None])
def test_what_is_known_or_gone_is_no_change(content: str | None) -> None:
    settling = Settling("a")
    assert settling.see("b", 0.0).again_s is not None
    assert settling.see(content, 0.1) == Look()
    assert settling.see("b", 9.0).again_s == pytest.approx(QUIET_S), "it begins to rest anew"


def test_an_empty_file_may_be_half_of_a_save() -> None:
    settling = Settling("a")
    assert settling.see(EMPTY, 0.0).again_s == pytest.approx(EMPTY_QUIET_S)
    assert not settling.see(EMPTY, EMPTY_QUIET_S - 0.1).changed
    assert settling.see(EMPTY, EMPTY_QUIET_S).changed


def test_a_file_that_never_rests_counts_in_the_end() -> None:
    settling = Settling("a")
    assert not settling.see("b", 0.0).changed
    assert not settling.see("c", MAX_SETTLE_S - 0.1).changed
    assert settling.see("d", MAX_SETTLE_S).changed


def test_the_first_content_of_a_file_that_was_not_there_is_a_change() -> None:
    settling = Settling(None)
    assert not settling.see("b", 0.0).changed
    assert settling.see("b", QUIET_S).changed


# --- real files -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter steps, so that the tests are quick; `QUIET_S` is what bursts are told by."""
    monkeypatch.setattr(watcher, "POLL_S", 0.1)
    monkeypatch.setattr(watcher, "_STEP_MS", 10)


class Watched:
    """A file under watch, with what was there at each call."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.calls: list[str] = []
        self.looks: list[str | None] = []
        self._moved = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(watcher, "digest", self._digest)

    def changed(self) -> None:
        self.calls.append(self.path.read_text())
        self._moved.set()

    def _digest(self, path: Path) -> str | None:
        """Runs in a thread."""
        found = digest(path)
        self._loop.call_soon_threadsafe(self._looked, found)
        return found

    def _looked(self, found: str | None) -> None:
        self.looks.append(found)
        self._moved.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    async def looked_again(self) -> None:
        """Returns after a look that began after this call."""
        seen = len(self.looks)
        await self.until(lambda: len(self.looks) >= seen + 2)


@asynccontextmanager
async def watching(
    path: Path, monkeypatch: pytest.MonkeyPatch, known: str | None = None
) -> AsyncIterator[Watched]:
    watched = Watched(path, monkeypatch)
    stop = asyncio.Event()
    task = asyncio.create_task(watch_file(path, watched.changed, stop, known=known))
    try:
        await watched.until(lambda: len(watched.looks) >= 2 or task.done())
        yield watched
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def _truncate_and_write(path: Path, text: str) -> None:
    with path.open("w") as stream:
        stream.flush()
        stream.write(text)


def _rename_over(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.swp")
    new.write_text(text)
    new.replace(path)


def _backup_and_create(path: Path, text: str) -> None:
    path.rename(path.with_name(f"{path.name}~"))
    path.write_text(text)


def _switch_link(path: Path, text: str) -> None:
    target = path.with_name(f"version-{abs(hash(text))}")
    target.write_text(text)
    link = path.with_name(".new-link")
    link.symlink_to(target.name)
    link.replace(path)


SAVES = [_truncate_and_write, _rename_over, _backup_and_create, _switch_link]


@pytest.mark.parametrize("save", SAVES)
def test_every_way_to_save_is_seen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path, str], None]
) -> None:
    async def scenario() -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("one")
        async with watching(path, monkeypatch) as watched:
            for text in ("two", "three"):
                save(path, text)
                await watched.until(lambda text=text: text in watched.calls)  # type: ignore[misc]
            assert watched.calls == ["two", "three"]

    run(scenario())


def test_the_system_reports_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a poll within the patience of the test."""
    monkeypatch.setattr(watcher, "POLL_S", 10 * PATIENCE_S)

    async def scenario() -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("one")
        stop, seen = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(watch_file(path, seen.set, stop))
        async with asyncio.timeout(PATIENCE_S):
            while not seen.is_set():
                _rename_over(path, f"{path.read_text()}+")  # the first may be before the watch
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(seen.wait(), 3 * QUIET_S)
            stop.set()
            await task

    run(scenario())


def test_a_burst_of_saves_is_one_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "QUIET_S", 0.5)

    async def scenario() -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("start")
        async with watching(path, monkeypatch) as watched:
            for n in range(10):
                SAVES[n % len(SAVES)](path, f"save {n}")
            await watched.until(lambda: bool(watched.calls))
            path.write_text("later")
            await watched.until(lambda: "later" in watched.calls)
            assert watched.calls == ["save 9", "later"]

    run(scenario())


@pytest.mark.parametrize("save", SAVES)
def test_a_save_without_a_change_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path, str], None]
) -> None:
    async def scenario() -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("same")
        async with watching(path, monkeypatch) as watched:
            save(path, "same")
            (tmp_path / "neighbour").write_text("other file")
            await watched.looked_again()
            assert watched.calls == []

    run(scenario())


def test_a_save_before_the_watch_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("loaded")
        known = digest(path)
        path.write_text("saved meanwhile")
        async with watching(path, monkeypatch, known) as watched:
            await watched.until(lambda: bool(watched.calls))
            assert watched.calls == ["saved meanwhile"]

    run(scenario())


def test_the_target_of_a_link_elsewhere_is_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        target = tmp_path / "dotfiles" / "registry.yaml"
        target.parent.mkdir()
        target.write_text("one")
        path = tmp_path / "config" / "registry.yaml"
        path.parent.mkdir()
        path.symlink_to(target)
        async with watching(path, monkeypatch) as watched:
            _rename_over(target, "two")
            await watched.until(lambda: watched.calls == ["two"])

    run(scenario())


def test_a_linked_folder_can_be_switched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        for release in ("r1", "r2"):
            (tmp_path / release).mkdir()
            (tmp_path / release / "registry.yaml").write_text(release)
        current = tmp_path / "current"
        current.symlink_to("r1")
        path = current / "registry.yaml"
        async with watching(path, monkeypatch) as watched:
            (tmp_path / "new").symlink_to("r2")
            (tmp_path / "new").replace(current)
            await watched.until(lambda: watched.calls == ["r2"])
            (tmp_path / "r2" / "registry.yaml").write_text("r2 edited")
            await watched.until(lambda: watched.calls == ["r2", "r2 edited"])

    run(scenario())


def test_a_folder_can_vanish_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.watcher")

    async def scenario() -> None:
        folder = tmp_path / "volume"
        path = folder / "registry.yaml"
        folder.mkdir()
        path.write_text("one")
        async with watching(path, monkeypatch) as watched:
            shutil.rmtree(folder)
            await watched.until(lambda: None in watched.looks)
            await watched.looked_again()
            assert watched.calls == []
            folder.mkdir()
            path.write_text("one")
            await watched.until(lambda: watched.looks[-1] is not None)
            await watched.looked_again()
            assert watched.calls == []
            path.write_text("two")
            await watched.until(lambda: watched.calls == ["two"])

    run(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "is gone or unreadable" in caplog.messages[0]


def test_a_system_that_cannot_watch_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise OSError("the limit of watches is reached")

    monkeypatch.setattr("watchfiles.awatch", exhausted)

    async def scenario() -> None:
        path = tmp_path / "registry.yaml"
        path.write_text("one")
        async with watching(path, monkeypatch) as watched:
            path.write_text("two")
            await watched.until(lambda: watched.calls == ["two"])

    run(scenario())
    assert len(caplog.messages) == 1
    assert "polled for, not watched: the limit of watches is reached" in caplog.messages[0]


def test_cancelling_leaves_the_stop_event_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        stop, seen = asyncio.Event(), asyncio.Event()
        path = tmp_path / "registry.yaml"
        path.write_text("one")
        task = asyncio.create_task(watch_file(path, seen.set, stop))
        path.write_text("two")
        task_known = asyncio.create_task(watch_file(path, seen.set, stop, known="other"))
        async with asyncio.timeout(PATIENCE_S):
            await seen.wait()
        for each in (task, task_known):
            each.cancel()
        await asyncio.gather(task, task_known, return_exceptions=True)
        assert task.cancelled()
        assert task_known.cancelled()
        assert not stop.is_set()

    run(scenario())
