"""The tokenizer worker's life: started by need, ended by idleness, restarted with a back-off."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from engines import wire
from gateway import errors
from gateway.registry.find import Model, find
from gateway.registry.schema import Entry
from gateway.supervisor import questions, tokenizers
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.tokenizers import Tokenizers, about, within_entry

pytestmark = pytest.mark.anyio

TIMEOUT_S = 30.0


class Notes:
    """Processes that were started and reaped."""

    def __init__(self) -> None:
        self.spawned_pids: list[int] = []
        self.reaped_pids: list[int] = []
        self.changed = asyncio.Event()

    def spawned(self, pid: int) -> None:
        self.spawned_pids.append(pid)
        self.changed.set()

    def reaped(self, pid: int) -> None:
        self.reaped_pids.append(pid)
        self.changed.set()

    def said(self, model: str, data: bytes) -> None:
        """Nobody here listens."""

    async def until_reaped(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.reaped_pids) < count:
                self.changed.clear()
                await self.changed.wait()


class Running:
    def __init__(self) -> None:
        self.notes = Notes()
        self.tasks = Tasks()
        self.tokenizers = Tokenizers(self.tasks, self.notes)
        self.asked = 0

    async def count(self, text: str = "three plain words") -> int:
        self.asked += 1
        messages = [{"role": "user", "content": text}]
        answer = await self.tokenizers.ask(wire.CountTokens(self.asked, "", messages))
        assert isinstance(answer, wire.Counted)
        return answer.tokens


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running()
    yield made
    await made.tokenizers.close()
    await made.tasks.close()
    assert made.notes.reaped_pids == made.notes.spawned_pids


async def test_the_first_question_starts_one_process_for_all(running: Running) -> None:
    assert running.tokenizers.pid is None
    counts = list(await asyncio.gather(running.count("a"), running.count("a b"), running.count()))
    assert counts == [1, 2, 3]
    assert running.notes.spawned_pids == [running.tokenizers.pid]
    assert await running.count() == 3
    assert len(running.notes.spawned_pids) == 1


async def test_what_fails_is_told_and_ends_nothing_else(running: Running) -> None:
    with pytest.raises(errors.InvalidRequest, match="unknown"):
        await running.tokenizers.ask(wire.Detokenize(1, "", [5]))
    with pytest.raises(errors.EngineFailed, match="no such folder"):
        await running.tokenizers.ask(wire.Tokenize(2, "/no such folder", "text"))
    assert await running.count() == 3
    assert len(running.notes.spawned_pids) == 1


async def test_it_ends_when_nothing_is_asked_and_comes_back(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "IDLE_S", 0.01)
    assert await running.count() == 3
    await running.notes.until_reaped(1)
    assert running.tokenizers.pid is None
    assert await running.count() == 3
    assert len(running.notes.spawned_pids) == 2


async def test_a_question_while_it_leaves_waits_for_the_next(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await running.count() == 3
    running.tokenizers._on_idle()
    assert await running.count() == 3
    assert len(running.notes.spawned_pids) == 2


async def test_a_death_fails_its_questions_and_backs_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.count()
    assert running.tokenizers.pid is not None
    os.kill(running.tokenizers.pid, signal.SIGSTOP)
    pending = asyncio.ensure_future(running.count())
    await asyncio.sleep(0)
    os.kill(running.tokenizers.pid, signal.SIGKILL)
    with pytest.raises(errors.EngineCrashed, match="SIGKILL"):
        await pending
    with pytest.raises(errors.EngineCrashed, match="not tried again yet") as caught:
        await running.count()
    assert 0 < (caught.value.retry_after_s or 0) <= tokenizers.RETRY_S
    running.tokenizers._retry_at = 0.0
    assert await running.count() == 3


async def test_the_queue_and_the_wait_are_bounded(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MOST_QUESTIONS", 1)
    first = asyncio.ensure_future(running.count())
    await asyncio.sleep(0)
    with pytest.raises(errors.QueueFull, match="1 requests already wait"):
        await running.count()
    assert await first == 3
    monkeypatch.setattr(tokenizers, "ANSWER_S", 0.0)
    with pytest.raises(errors.EngineHung, match="did not answer within"):
        await running.count()
    monkeypatch.undo()
    assert await running.count() == 3


async def test_after_close_nothing_is_asked(running: Running) -> None:
    await running.count()
    await running.tokenizers.close()
    with pytest.raises(errors.EngineCrashed):
        await running.count()


# --- what is asked, of which model ----------------------------------------------------------------


def model(**fields: object) -> Model:
    return find(Entry(name="m", engine="scripted", **fields), base=Path(), environ={})  # type: ignore[arg-type]


def test_a_question_is_addressed_to_the_model() -> None:
    def make(id_: int, path: str) -> wire.Ask:
        return wire.Tokenize(id_, path, "x")

    assert about(model(), 4, make) == wire.Tokenize(4, "", "x")
    real = msgspec.structs.replace(model(trust_remote_code=True), path=Path("/a"))
    assert about(real, 4, make) == wire.Tokenize(4, "/a", "x", trust_remote_code=True)
    with pytest.raises(errors.ModelUnavailable, match="gone"):
        about(msgspec.structs.replace(real, unavailable="gone"), 4, make)
    large = "x" * wire.MAX_REQUEST_BYTES
    with pytest.raises(errors.BodyTooLarge):
        about(real, 4, lambda id_, path: wire.Tokenize(id_, path, large))


def test_the_context_length_is_the_entrys() -> None:
    answer = wire.Tokenized(1, [], 1000)
    assert within_entry(model(), answer) == answer
    assert within_entry(model(context_length=5000), answer) == wire.Tokenized(1, [], 5000)
    real = msgspec.structs.replace(model(), entry=Entry(name="m", context_length=5000))
    assert within_entry(real, answer) == answer
    assert within_entry(real, wire.Counted(1, 7)) == wire.Counted(1, 7)
