"""A fault with one engine is that model's alone, whatever raises it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines import wire
from gateway import errors
from gateway.errors import Refusal
from gateway.registry.find import Model, find
from gateway.registry.remembered import Remembered
from gateway.registry.schema import Entry, Scripted
from gateway.residency import (
    CancelLeases,
    Policy,
    Priority,
    Reject,
    SetLimits,
    State,
    Stop,
    Transition,
)
from gateway.supervisor.call import Call, CallFailed, CallItem
from gateway.supervisor.engine import EngineLife, Exit
from gateway.supervisor.probe import ScriptedProbe
from gateway.supervisor.process import Process
from gateway.supervisor.setup import Setup, Wish
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.watch import Patience
from tests.harness.in_process import in_process, scripted_model

pytestmark = pytest.mark.anyio

GIB = 2**30
TIMEOUT_S = 30.0


class Notes:
    """An observer that only notes how engines ended."""

    def __init__(self) -> None:
        self.exits: list[tuple[str, str]] = []
        self.exited_once = asyncio.Event()

    def moved(self, transition: Transition) -> None: ...

    def granted(self, model: str, asked: str, waited_s: float) -> None: ...

    def refused(self, model: str, asked: str, reject: Reject) -> None: ...

    def given_up(self, model: str, reason: str) -> None: ...

    def stopped(self, stop: Stop) -> None: ...

    def ended(self, ended: CancelLeases) -> None: ...

    def limited(self, limits: SetLimits) -> None: ...

    def pinned(self, model: str, pinned: bool, until: float | None) -> None: ...

    def stranded(self, model: str, stranded_bytes: int) -> None: ...

    def forgotten(self, model: str) -> None: ...

    def spawned(self, pid: int) -> None: ...

    def reaped(self, pid: int) -> None: ...

    def said(self, model: str, data: bytes) -> None: ...

    def loading(self, model: str, progress: wire.Loading) -> None: ...

    def loaded(self, model: Model, ready: wire.Ready, seconds: float) -> None: ...

    def finished(self, asked: str, finished: wire.Finished) -> None: ...

    def turn_granted(self, model: str, waited_s: float) -> None: ...

    def exited(self, model: str, pid: int | None, exit_: Exit) -> None:
        self.exits.append((model, exit_.how))
        self.exited_once.set()


class Running:
    """A supervisor with two small scripted models, `one` and `two`."""

    def __init__(self) -> None:
        self.notes = Notes()
        self.tasks = Tasks()
        models = tuple(
            find(
                Entry(name=name, engine="scripted", scripted=Scripted(size_gb=1, deltas=2)),
                base=Path(),
                environ={},
            )
            for name in ("one", "two")
        )
        setup = Setup(models, Policy(budget_bytes=2 * GIB), Patience())
        sizes = Remembered(Path("unused"))
        self.supervisor = Supervisor(setup, ScriptedProbe(), sizes, self.tasks, self.notes)

    def call(self, model: str) -> Call:
        return self.supervisor.open(
            model, lambda call_id: wire.Generate(call_id, [{"role": "user", "content": "x"}])
        )

    def state(self, model: str) -> State:
        return next(view.state for view in self.supervisor.snapshot().models if view.name == model)

    async def last(self, call: Call) -> CallItem:
        """The item that ends the call."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while True:
            items = await call.batch(deadline)
            assert items, "the call never ended"
            if isinstance(items[-1], wire.Finished | CallFailed):
                return items[-1]

    async def failure(self, model: str) -> errors.GatewayError:
        end = await self.last(self.call(model))
        assert isinstance(end, CallFailed)
        return end.error


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running()
    yield made
    await made.supervisor.shutdown()
    await made.tasks.close()


def once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception) -> None:
    """The first use of `owner.name` raises; after that it is as before."""
    original = getattr(owner, name)

    def raises(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        raise error

    monkeypatch.setattr(owner, name, raises)


async def test_a_process_that_cannot_be_started_is_a_failed_load(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, Process, "spawn", BlockingIOError(11, "Resource temporarily unavailable"))
    error = await running.failure("one")
    assert isinstance(error, errors.LoadFailed)
    assert "did not start: [Errno 11] Resource temporarily unavailable" in error.message
    assert isinstance(await running.last(running.call("one")), wire.Finished)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Process, "spawn"), (EngineLife, "_until_over"), (EngineLife, "_end"), (EngineLife, "_exit")],
)
async def test_a_bug_in_the_life_of_an_engine_ends_only_that_engine(
    running: Running, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    assert isinstance(await running.last(running.call("two")), wire.Finished)
    once(monkeypatch, owner, name, RuntimeError("a bug"))
    call = running.call("one")
    if name in ("_end", "_exit"):  # these run at the end of a life
        assert isinstance(await running.last(call), wire.Finished)
        running.supervisor.slots["one"].stop("the test says so")
        async with asyncio.timeout(TIMEOUT_S):
            await running.notes.exited_once.wait()
    else:
        end = await running.last(call)
        assert isinstance(end, CallFailed)
        assert "the gateway failed while running it: a bug" in end.error.message
    assert isinstance(await running.last(running.call("two")), wire.Finished)
    assert running.state("two") is State.READY
    assert isinstance(await running.last(running.call("one")), wire.Finished)
    assert [model for model, _ in running.notes.exits] == ["one"]


async def test_a_bug_while_a_decision_is_carried_out_stops_no_other(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, type(running.supervisor), "_set_timer", RuntimeError("a bug"))
    assert isinstance(await running.last(running.call("one")), wire.Finished)
    assert isinstance(await running.last(running.call("two")), wire.Finished)


async def test_a_request_too_large_for_the_wire_is_refused_before_it_counts(
    running: Running,
) -> None:
    text = "x" * wire.MAX_REQUEST_BYTES
    with pytest.raises(errors.BodyTooLarge, match="the limit is 8,388,608"):
        running.supervisor.open(
            "one", lambda call_id: wire.Generate(call_id, [{"role": "user", "content": text}])
        )
    view = running.supervisor.snapshot().models[0]
    assert (view.waiting, view.loads) == (0, 0)


async def test_while_draining_nothing_new_is_taken(running: Running) -> None:
    call = running.call("one")
    refusal = Refusal(errors.Draining, "no more", 5)
    running.supervisor.drain(refusal)
    with pytest.raises(errors.Draining, match="no more"):
        running.call("two")
    assert isinstance(await running.last(call), wire.Finished)
    async with asyncio.timeout(TIMEOUT_S):
        await running.supervisor.drained()


async def test_a_drain_is_over_when_the_last_who_waits_leaves(running: Running) -> None:
    call = running.call("one")
    running.supervisor.drain(Refusal(errors.Draining, "no more", 5))
    drained = asyncio.ensure_future(running.supervisor.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    running.supervisor.close(call)
    async with asyncio.timeout(TIMEOUT_S):
        await drained


async def test_while_draining_a_reload_loads_nothing() -> None:
    async with in_process((scripted_model("one"),), 4 * GIB) as made:
        made.supervisor.drain(Refusal(errors.Draining, "no more", 5))
        made.reload((scripted_model("one"), scripted_model("two", preload=True)), standby=0)
        assert made.view("two").state is State.UNLOADED
        assert not made.pids.history


async def test_a_load_that_is_taken_back_at_once_starts_no_process() -> None:
    async with in_process((scripted_model("one"),), 4 * GIB) as made:
        made.supervisor.load("one")
        made.supervisor.unload("one")
        await made.until_state("one", State.UNLOADED)
        assert not made.pids.history
        await made.serve("one")


async def test_a_model_that_a_reload_has_just_removed_is_refused(running: Running) -> None:
    """The request met the registry before its body was there, and the reload came in between."""
    wish = Wish(priority=Priority.LOW)
    call = running.supervisor.open("gone", wire.Generate, wish)
    end = await running.last(call)
    assert isinstance(end, CallFailed)
    assert isinstance(end.error, errors.ModelNotFound)


async def test_large_requests_that_come_together_are_no_fault_of_the_engine() -> None:
    text = "x" * (wire.MAX_REQUEST_BYTES - 1000)
    model = scripted_model("one", deltas=1)
    async with in_process((model,), 4 * GIB) as made:
        pid = await made.serve("one")
        calls = [made.call("one", prompt=text) for _ in range(6)]
        for call in calls:
            await made.until_item(call, wire.Finished)
        answers = await asyncio.gather(
            *(
                made.supervisor.ask("one", lambda id_, path: wire.Tokenize(id_, path, text))
                for _ in range(6)
            ),
            return_exceptions=True,
        )
        assert not [a for a in answers if isinstance(a, errors.Unavailable)], answers
        assert made.supervisor.slots["one"].pid == pid


async def test_an_engine_that_somebody_else_stops_tells_its_clients() -> None:
    """They are there: an end as for a client that has left would drop their streams."""
    async with in_process((scripted_model("one", deltas=100, tokens_per_s=5),), 4 * GIB) as made:
        call = made.call("one")
        await made.until_item(call, wire.TextDelta)
        pid = made.supervisor.slots["one"].pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        end = await made.until_item(call, CallFailed)
        assert isinstance(end, CallFailed)
        assert isinstance(end.error, errors.EngineCrashed)
        assert "stopped from outside the gateway" in end.error.message
        assert end.error.retry_after_s == 1


async def test_ending_every_call_copes_with_others_that_end_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first to leave shows that the time of those behind it was over as well."""
    models = (scripted_model("one", deltas=100, tokens_per_s=1), scripted_model("two"))
    async with in_process(models, 3 * GIB // 2) as made:
        running = made.call("one")
        await made.until_item(running, wire.TextDelta)
        waiting = [made.call("two") for _ in range(3)]
        loop = asyncio.get_running_loop()
        later = SimpleNamespace(time=lambda: loop.time() + 1e6, call_at=loop.call_at)
        monkeypatch.setattr(made.supervisor, "_loop", later)
        made.supervisor.end_calls(Refusal(errors.Draining, "no more", 5))
        monkeypatch.undo()
        for call in (running, *waiting):
            assert isinstance((await call.batch(loop.time()))[-1], CallFailed)
        assert not made.supervisor._waiting


async def test_a_client_that_takes_nothing_is_told_so_and_frees_its_place(
    running: Running,
) -> None:
    waiting = running.call("one")
    running.supervisor.too_slow(waiting)
    end = await running.last(waiting)
    assert isinstance(end, CallFailed)
    assert isinstance(end.error, errors.ClientTooSlow)
    assert running.supervisor.snapshot().models[0].waiting == 0


# --- small questions ------------------------------------------------------------------------------


async def count(running: Running, model: str = "one", text: str = "two words") -> int:
    messages = [{"role": "user", "content": text}]
    answer = await running.supervisor.ask(
        model, lambda id_, path: wire.CountTokens(id_, path, messages)
    )
    assert isinstance(answer, wire.Counted)
    return answer.tokens


async def test_counting_loads_nothing(running: Running) -> None:
    assert await count(running) == 2
    view = running.supervisor.snapshot().models[0]
    assert (view.state, view.loads, view.running, view.waiting) == (State.UNLOADED, 0, 0, 0)


async def test_a_ready_engine_counts_and_is_not_used_by_it(running: Running) -> None:
    assert isinstance(await running.last(running.call("one")), wire.Finished)
    before = running.supervisor.snapshot().models[0]
    assert await count(running) == 2
    with pytest.raises(errors.InvalidRequest, match="unknown"):
        await running.supervisor.ask("one", lambda id_, path: wire.Detokenize(id_, path, [5]))
    assert running.supervisor._tokenizers.pid is None
    after = running.supervisor.snapshot().models[0]
    assert (after.running, after.loads) == (0, 1)
    assert after.idle_s is not None
    assert before.idle_s is not None
    assert after.idle_s >= before.idle_s


async def test_an_engine_that_dies_over_a_question_leaves_it_to_the_worker(
    running: Running,
) -> None:
    assert isinstance(await running.last(running.call("one")), wire.Finished)
    pid = running.supervisor.slots["one"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    counting = asyncio.ensure_future(count(running))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await counting == 2
    assert running.supervisor._tokenizers.pid is not None


async def test_while_draining_nothing_is_counted(running: Running) -> None:
    running.supervisor.drain(Refusal(errors.Draining, "no more", 5))
    with pytest.raises(errors.Draining, match="no more"):
        await count(running)


async def test_what_is_asked_of_a_model_that_a_reload_has_removed_is_no_fault(
    running: Running,
) -> None:
    """Its media were fetched, or another's disk was looked at, and the reload came in between."""
    with pytest.raises(errors.ModelNotFound, match="'gone'"):
        await count(running, "gone")
    supervisor = running.supervisor
    assert supervisor.ask_engine("gone", wire.ClearCache) is None
    assert not supervisor.warm("gone")
    assert supervisor.prompt_folder("gone") is None
