"""Warm prompts are told to a ready engine in order, and what it does not take stops nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engines import wire
from gateway.errors import EngineCrashed, Unsupported
from gateway.registry.find import Model, find
from gateway.registry.schema import Entry
from gateway.registry.warm import WarmPrompt
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.warm import Warmer
from tests.harness.in_process import in_process, scripted_model, until

pytestmark = pytest.mark.anyio

PROMPTS = tuple(WarmPrompt([{"role": "system", "content": text}]) for text in ("one", "two words"))


class Engine:
    """Answers at once, in turn with what it was given; None stands for an engine that is gone."""

    def __init__(self, *answers: int | Exception | None) -> None:
        self.asked: list[wire.Warm] = []
        self._answers = list(answers)

    def ask(self, name: str, make: Any) -> asyncio.Future[wire.Answer] | None:
        question = make(len(self.asked), "")
        assert isinstance(question, wire.Warm)
        self.asked.append(question)
        answer = self._answers.pop(0)
        if answer is None:
            return None
        future: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(wire.Counted(question.id, answer))
        return future


def model(*prompts: WarmPrompt) -> Model:
    entry = Entry(name="m", engine="scripted", chat_template_kwargs={"enable_thinking": False})
    found = find(entry, base=Path(), environ={})
    return Model(entry=found.entry, size=found.size, warm=prompts)


async def told(engine: Engine, *prompts: WarmPrompt) -> bool:
    tasks = Tasks()
    scheduled = Warmer(tasks, engine.ask).schedule(model(*prompts))
    await until(lambda: len(tasks) == 0)
    return scheduled


async def test_every_prompt_is_told_in_order(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    engine = Engine(5, 7)
    assert await told(engine, *PROMPTS)
    assert [question.messages for question in engine.asked] == [p.messages for p in PROMPTS]
    assert engine.asked[0].template_kwargs == {"enable_thinking": False}
    assert "2 warm prompts with 12 tokens" in caplog.text


async def test_there_may_be_nothing_to_tell() -> None:
    assert not await told(Engine())


async def test_one_that_is_refused_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert await told(Engine(Unsupported("no prompts"), 7), *PROMPTS)
    assert "left out: no prompts" in caplog.text
    assert "1 warm prompts with 7 tokens" in caplog.text


@pytest.mark.parametrize("end", [None, EngineCrashed("it is gone")])
async def test_an_engine_that_goes_is_no_fault(end: Exception | None) -> None:
    engine = Engine(end, None)
    assert await told(engine, *PROMPTS)


async def test_again_begins_anew() -> None:
    tasks, engine = Tasks(), Engine(1, 2, 3, 4)
    warmer = Warmer(tasks, engine.ask)
    assert warmer.schedule(model(*PROMPTS))
    assert warmer.schedule(model(*PROMPTS))
    await until(lambda: len(tasks) == 0)
    assert [question.messages for question in engine.asked] == [p.messages for p in PROMPTS]


async def test_each_load_is_told_and_takes_no_lease(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.warm")
    plain = scripted_model("a")
    warm = Model(entry=plain.entry, size=plain.size, warm=PROMPTS)
    async with in_process((warm,), 2 * 2**30) as gateway:
        gateway.supervisor.load("a")
        await gateway.until(lambda: "2 warm prompts with 3 tokens" in caplog.text)
        assert gateway.view("a").running == 0
        assert gateway.supervisor.warm("a")
        await gateway.until(lambda: caplog.text.count("2 warm prompts") == 2)
        changed = Model(entry=plain.entry, size=plain.size, warm=PROMPTS[:1])
        gateway.reload((changed,), 0)
        await gateway.until(lambda: "1 warm prompts with 1 tokens" in caplog.text)
