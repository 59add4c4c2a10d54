"""Responses in the background: who may follow, what is kept, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from engines import wire
from gateway.api import responses_runs
from gateway.api.answer import Answer
from gateway.api.responses_encode import EventEncoder
from gateway.api.responses_runs import MAX_READERS, MAX_RUNS, Run, Runs, split
from gateway.api.sse import EventStream
from gateway.errors import EngineCrashed, QueueFull, Unavailable
from gateway.supervisor.call import CallItem
from gateway.supervisor.tasks import Tasks
from tests.harness.cases import events_of
from tests.unit.api.test_responses_encode import FINISHED, STARTED, decoded, ended, text

pytestmark = pytest.mark.anyio

TIMEOUT_S = 10.0


class Scripted:
    """An answer that waits to be told how it goes on."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[CallItem | Exception] = asyncio.Queue()

    async def stream(self, encoder: EventEncoder, out: EventStream) -> None:
        while True:
            step = await self.steps.get()
            if isinstance(step, Exception):
                raise step
            await out.write(b"".join(encoder.frames([step])))
            if isinstance(step, wire.Finished):
                await out.end()
                return

    def say(self, *steps: CallItem | Exception) -> None:
        for step in steps:
            self.steps.put_nowait(step)


class Bench:
    """Runs, and everything that has come of them."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.over: list[Run] = []
        self.released: list[str] = []
        self.runs = Runs(self.tasks, self.over.append)

    def start(self, serial: str = "abc", **fields: Any) -> tuple[Run, Scripted]:
        answer, held = Scripted(), contextlib.ExitStack()
        held.callback(self.released.append, serial)
        made = decoded(serial=serial, background=True, **fields)
        return self.runs.start(made, cast(Answer, answer), held), answer


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.tasks.close()


async def all_of(run: Run, after: int = -1) -> list[tuple[str, Any]]:
    reader, over, frames = run.join(after), False, b""
    async with asyncio.timeout(TIMEOUT_S):
        while not over:
            batch, over = await reader.batch(TIMEOUT_S)
            frames += b"".join(batch)
    return events_of(frames.decode())


async def test_a_run_goes_on_to_its_end_and_is_handed_over(bench: Bench) -> None:
    run, answer = bench.start()
    assert run.response()["status"] == "queued"
    assert bench.runs.get("resp_abc", "") is run
    assert bench.runs.get("resp_abc", "you") is None
    answer.say(STARTED, text("a "), text("b"), ended(), FINISHED)
    events = await all_of(run)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert events[-1][0] == "response.completed"
    assert bench.over == [run]
    assert (len(bench.runs), bench.released) == (0, ["abc"])
    assert run.response()["status"] == "completed"
    assert len(run.log().frames) == len(events)


async def test_a_reader_begins_where_it_wants(bench: Bench) -> None:
    run, answer = bench.start()
    everything = asyncio.ensure_future(all_of(run))
    answer.say(STARTED, text("a "), text("b"), ended(), FINISHED)
    events = await everything
    assert await all_of(run, 4) == events[5:]
    assert await all_of(run, len(events)) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineCrashed("it died"), "engine_crashed"), (ValueError("a bug"), "internal_error")],
)
async def test_a_failure_is_told_and_handed_over(bench: Bench, error: Exception, code: str) -> None:
    run, answer = bench.start()
    answer.say(STARTED, text("a"), error)
    name, data = (await all_of(run))[-1]
    assert (name, data["response"]["error"]["code"]) == ("response.failed", code)
    assert (bench.over, bench.released) == ([run], ["abc"])


@pytest.mark.parametrize("begun", [False, True])
async def test_a_cancelled_run_ends_at_once(bench: Bench, begun: bool) -> None:
    run, answer = bench.start()
    reader = run.join(-1)
    if begun:
        answer.say(STARTED, text("a"))
        while not run.response()["output"]:
            await reader.batch(TIMEOUT_S)
    bench.runs.cancel(run)
    assert run.response()["status"] == "cancelled"
    assert (bench.over, bench.released, len(bench.runs)) == ([run], ["abc"], 0)
    name, data = (await all_of(run))[-1]
    assert (name, data["code"]) == ("error", "cancelled")


async def test_there_are_only_so_many(bench: Bench) -> None:
    started = []
    for number in range(MAX_RUNS):
        bench.runs.check_room()
        started.append(bench.start(str(number))[0])
    with pytest.raises(QueueFull):
        bench.runs.check_room()
    bench.runs.cancel(started[0])
    bench.runs.check_room()


async def test_only_so_many_may_follow_one(bench: Bench) -> None:
    run, _ = bench.start()
    readers = [run.join(-1) for _ in range(MAX_READERS)]
    with pytest.raises(Unavailable):
        run.join(-1)
    readers[0].leave()
    assert run.join(-1) is not None


async def test_a_reader_that_leaves_is_told_at_once_that_it_is_over(bench: Bench) -> None:
    run, _ = bench.start()
    reader = run.join(100)
    waiting = asyncio.ensure_future(reader.batch(TIMEOUT_S))
    await asyncio.sleep(0)
    reader.leave()
    assert await waiting == ([], True)


async def test_the_log_is_bounded_and_a_slow_reader_hears_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_runs, "LOG_BYTES", 2000)
    run, answer = bench.start()
    slow = run.join(-1)
    answer.say(STARTED, *[text("word ") for _ in range(50)], ended(), FINISHED)
    await all_of(run, 1000)
    assert run.first > 0
    assert sum(map(len, run.log().frames)) <= 2000
    frames, over = await slow.batch(TIMEOUT_S)
    ((name, data),) = events_of(b"".join(frames).decode())
    assert (over, name, data["code"], data["sequence_number"]) == (True, "error", "not_found", 0)


def test_frames_are_told_apart() -> None:
    frames = [b"event: a\ndata: 1\n\n", b"event: b\ndata: 2\n\n"]
    assert split(b"".join(frames)) == frames
    assert split(b"") == []
