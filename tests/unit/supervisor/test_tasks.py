"""A task that fails tells its owner, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.supervisor.tasks import Tasks

pytestmark = pytest.mark.anyio


async def forever() -> None:
    await asyncio.Event().wait()


def unexpected(error: Exception) -> None:
    raise AssertionError(error)


async def test_a_failure_is_logged_once_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    failures: list[Exception] = []
    error = RuntimeError("a bug")

    async def fail() -> None:
        raise error

    other = tasks.supervised("other", forever(), unexpected)
    with caplog.at_level(logging.ERROR):
        await tasks.supervised("one", fail(), failures.append)
    assert failures == [error]
    assert [record.getMessage() for record in caplog.records] == ["task one failed"]
    assert not other.done()
    await tasks.close()


async def test_an_end_and_a_cancellation_are_no_failures() -> None:
    tasks = Tasks()

    async def end() -> None:
        return

    await tasks.supervised("ends", end(), unexpected)
    cancelled = tasks.supervised("cancelled", forever(), unexpected)
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert len(tasks) == 0


async def test_close_ends_what_still_runs() -> None:
    tasks = Tasks()
    running = [tasks.supervised(f"task {number}", forever(), unexpected) for number in range(3)]
    assert len(tasks) == 3
    await tasks.close()
    assert all(task.cancelled() for task in running)
    assert len(tasks) == 0
    await tasks.close()  # nothing left to do
