"""Long prompts of several engines, and live changes, with real engine processes in no hurry."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from engines import wire
from engines.turns import LONG
from gateway import errors
from gateway.registry.find import Model
from gateway.residency import State
from gateway.supervisor import turns
from gateway.supervisor.call import Call, CallFailed
from gateway.supervisor.engine import EngineLife
from gateway.supervisor.slot import Slot
from gateway.supervisor.turns import TurnsView
from gateway.supervisor.watch import Patience
from tests.harness.in_process import InProcess, in_process, scripted_model

pytestmark = pytest.mark.anyio

GIB = 2**30
PROMPT = " ".join(["word"] * LONG)
FOR_EVER = 600.0


def slow(name: str, prefill_s: float = FOR_EVER, **options: Any) -> Model:
    return scripted_model(name, prefill_s=prefill_s, deltas=1, **options)


async def begun(made: InProcess, model: str) -> Call:
    """A long prompt that has its turn: it makes progress."""
    call = made.call(model, prompt=PROMPT)
    await made.until_item(call, wire.PromptProgress)
    return call


async def waiting(made: InProcess, *models: str) -> None:
    await made.until(lambda: made.supervisor.turns.waiting == models)


async def test_a_long_prompt_waits_for_that_of_another_model() -> None:
    async with in_process((slow("a"), slow("b"), slow("c")), 3 * GIB) as made:
        first = await begun(made, "a")
        second = made.call("b", prompt=PROMPT)
        await waiting(made, "b")
        third = made.call("c", prompt=PROMPT)
        await waiting(made, "b", "c")
        assert made.supervisor.turns == TurnsView(1, ("a",), (), ("b", "c"))
        made.supervisor.close(first)
        await made.until_item(second, wire.PromptProgress)
        assert made.supervisor.turns == TurnsView(1, ("b",), (), ("c",))
        made.supervisor.close(second)
        await made.until_item(third, wire.PromptProgress)


async def test_short_prompts_and_those_that_end_need_no_turn_or_give_it_back() -> None:
    async with in_process((slow("a"), slow("b", prefill_s=0.2)), 2 * GIB) as made:
        first = await begun(made, "a")
        await made.serve("b")  # a short one
        second = made.call("b", prompt=PROMPT)
        await waiting(made, "b")
        made.supervisor.close(first)
        await made.until_item(second, wire.Finished)
        await made.until(lambda: made.supervisor.turns == TurnsView(1, (), (), ()))


async def test_a_call_that_leaves_while_it_waits_gives_its_place_back() -> None:
    async with in_process((slow("a"), slow("b")), 2 * GIB) as made:
        await begun(made, "a")
        second = made.call("b", prompt=PROMPT)
        await waiting(made, "b")
        made.supervisor.close(second)
        await waiting(made)
        assert made.supervisor.turns.holding == ("a",)


async def test_an_engine_that_dies_gives_its_turn_back() -> None:
    async with in_process((slow("a"), slow("b")), 2 * GIB) as made:
        await begun(made, "a")
        second = made.call("b", prompt=PROMPT)
        await waiting(made, "b")
        pid = made.supervisor.slots["a"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await made.until_item(second, wire.PromptProgress)
        assert made.supervisor.turns.holding == ("b",)


async def test_an_engine_that_is_stopped_loses_its_place() -> None:
    async with in_process((slow("a"), slow("b"), slow("c")), 3 * GIB) as made:
        first = await begun(made, "a")
        made.call("b", prompt=PROMPT)
        await waiting(made, "b")
        third = made.call("c", prompt=PROMPT)
        await waiting(made, "b", "c")
        made.supervisor.slots["b"].stop("the test says so")
        await waiting(made, "c")
        made.supervisor.close(first)
        await made.until_item(third, wire.PromptProgress)


async def test_an_endless_prompt_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.3)
    async with in_process((slow("a"), slow("b")), 2 * GIB) as made:
        first = await begun(made, "a")
        await begun(made, "b")
        assert made.supervisor.turns == TurnsView(1, ("b",), ("a",), ())
        made.supervisor.close(first)
        await made.until(lambda: made.supervisor.turns.late == ())


async def test_an_engine_that_waits_for_its_turn_is_not_hung() -> None:
    async with in_process((slow("a"), slow("b", prefill_s=0.1)), 2 * GIB) as made:
        first = await begun(made, "a")
        second = made.call("b", prompt=PROMPT)
        await waiting(made, "b")
        slot = made.supervisor.slots["b"]
        assert slot._engine is not None
        slot._engine.be(Patience(hang_timeout_s=0.05, first_step_timeout_s=0.05))
        beat = slot.heartbeat
        await made.until(lambda: slot.heartbeat is not beat)
        assert not made.pids.exits
        slot._engine.be(Patience())
        made.supervisor.close(first)
        await made.until_item(second, wire.Finished)
        assert not made.pids.exits


# --- what a reload changes for engines that run ---------------------------------------------------


async def test_the_number_of_turns_is_live() -> None:
    models = (slow("a"), slow("b"))
    async with in_process(models, 2 * GIB) as made:
        await begun(made, "a")
        second = made.call("b", prompt=PROMPT)
        await waiting(made, "b")
        made.reload(models, 0, prefill_slots=2)
        await made.until_item(second, wire.PromptProgress)
        assert made.supervisor.turns == TurnsView(2, ("a", "b"), (), ())


async def test_patience_is_live_for_an_engine_that_is_stuck_already() -> None:
    models = (scripted_model("a", hang_after=1, deltas=5),)
    async with in_process(models, GIB) as made:
        call = made.call("a")
        await made.until_item(call, wire.TextDelta)
        made.reload(models, 0, patience=Patience(hang_timeout_s=0.2, first_step_timeout_s=0.2))
        await made.until(lambda: made.pids.exits)
        ((_, exit_),) = made.pids.exits
        assert exit_.how == "hung"


async def test_a_reload_after_one_that_restarts_is_for_the_next_life_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[wire.SetLimits] = []
    send = EngineLife.send

    def noting(life: EngineLife, message: wire.ToEngine) -> None:
        if isinstance(message, wire.SetLimits):
            sent.append(message)
        send(life, message)

    monkeypatch.setattr(EngineLife, "send", noting)
    async with in_process((slow("a", 0.01),), 8 * GIB) as made:
        pid = await made.serve("a")
        slot = made.supervisor.slots["a"]
        before = slot.terms
        call = made.call("a", prompt="x", max_tokens=1)
        made.reload((slow("a", 0.02),), 0, restarted=("a",))
        made.reload((slow("a", 0.02, kv_memory_gb=3.0),), 0)
        assert (slot.terms, sent) == (before, [])
        await made.until_item(call, wire.Finished)
        await made.until(lambda: slot.pid != pid)
        assert slot.terms.model.entry.kv_memory_gb == 3.0
        assert await made.serve("a") != pid


# --- a fault on the way to the engine -------------------------------------------------------------


async def test_a_call_that_cannot_be_handed_over_fails_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    models = (scripted_model("a", deltas=1, max_concurrency=1),)
    async with in_process(models, GIB) as made:
        await made.serve("a")
        for owner in (Slot, EngineLife):  # before the call is noted, and after it
            with monkeypatch.context() as patch:
                patch.setattr(owner, "serve", broken)
                call = made.call("a")
                (item,) = [item for item in call.take() if isinstance(item, CallFailed)]
            assert isinstance(item.error, errors.InternalError)
            assert made.view("a").running == 0
            assert not made.supervisor.slots["a"].calls
            await made.serve("a")
        assert made.view("a").state is State.READY
        async with asyncio.timeout(30):
            await made.supervisor.drained()
    assert caplog.text.count("could not be handed to model a") == 2


def broken(*_: object) -> None:
    raise RuntimeError("a bug")
