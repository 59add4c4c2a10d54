"""A supervisor with real engines in the test's own process, without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

from engines import wire
from gateway.registry.find import Model, find
from gateway.registry.remembered import Remembered
from gateway.registry.schema import Entry, Scripted
from gateway.residency import ModelView, Policy, State
from gateway.supervisor.call import Call, CallFailed, CallItem
from gateway.supervisor.engine import Exit
from gateway.supervisor.probe import ScriptedProbe
from gateway.supervisor.setup import Setup
from gateway.supervisor.slot import Observer
from gateway.supervisor.standby import Spare
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.watch import Patience

TIMEOUT_S = 60.0
DEFAULT_PATIENCE = Patience()
POLL_S = 0.005


async def until(holds: Callable[[], object]) -> None:
    """Returns once `holds` is true, and fails when it never is."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    while True:
        if holds():
            return
        assert loop.time() < deadline, "it never came true"
        await asyncio.sleep(POLL_S)


class Pids:
    """An observer that keeps account of processes and hears of nothing else.

    `history` has a pid when it begins and its negative when it has ended; `exits` says how each
    model's processes ended.
    """

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.history: list[int] = []
        self.exits: list[tuple[str, Exit]] = []

    def spawned(self, pid: int) -> None:
        if pid not in self.alive:
            self.history.append(pid)
        self.alive.add(pid)

    def reaped(self, pid: int) -> None:
        self.history.append(-pid)
        self.alive.discard(pid)

    def exited(self, model: str, pid: int | None, exit_: Exit) -> None:
        self.exits.append((model, exit_))
        if pid is not None:
            self.reaped(pid)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class InProcess:
    """A supervisor of `models` under `budget_bytes`, with `standby` spares."""

    def __init__(
        self, models: tuple[Model, ...], budget_bytes: int, standby: int, patience: Patience
    ) -> None:
        self.pids = Pids()
        self.tasks = Tasks()
        self._policy = Policy(budget_bytes=budget_bytes, min_resident_s=0.0)
        self._patience = patience
        self._setup = Setup(models, self._policy, patience, standby)
        self.supervisor = Supervisor(
            self._setup,
            ScriptedProbe(),
            Remembered(Path("unused")),
            self.tasks,
            cast(Observer, self.pids),
        )
        self.supervisor.preload()

    def reload(
        self,
        models: tuple[Model, ...],
        standby: int,
        restarted: tuple[str, ...] = (),
        *,
        patience: Patience | None = None,
        prefill_slots: int = 1,
    ) -> None:
        self._patience = patience or self._patience
        self._setup = Setup(models, self._policy, self._patience, standby, prefill_slots)
        self.supervisor.reload(self._setup, frozenset(restarted))

    def call(self, model: str, **fields: Any) -> Call:
        messages = [{"role": "user", "content": "hello"}]
        return self.supervisor.open(model, lambda id_: wire.Generate(id_, messages, **fields))

    async def until_item(self, call: Call, kind: type) -> CallItem:
        """The first item of this kind. Raises `AssertionError` when the call fails before it."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while items := await call.batch(deadline):
            for item in items:
                if isinstance(item, kind):
                    return item
                assert not isinstance(item, CallFailed), item
        raise AssertionError(f"the call has waited {TIMEOUT_S:g} s for {kind.__name__}")

    async def serve(self, model: str, **fields: Any) -> int:
        """One whole call; the pid of the process that served it."""
        call = self.call(model, **fields)
        await self.until_item(call, wire.Finished)
        pid = self.supervisor.slots[model].pid
        assert pid is not None
        return pid

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds)

    async def spare(self) -> Spare:
        """The one spare, once its imports are done."""
        standby = self.supervisor.standby
        await self.until(lambda: [s for s in standby.spares if s.imported and s.usable])
        (spare,) = standby.spares
        return spare

    def view(self, model: str) -> ModelView:
        return next(view for view in self.supervisor.snapshot().models if view.name == model)

    async def until_state(self, model: str, state: State) -> None:
        await self.until(lambda: self.view(model).state is state)


@contextlib.asynccontextmanager
async def in_process(
    models: tuple[Model, ...],
    budget_bytes: int,
    standby: int = 0,
    patience: Patience = DEFAULT_PATIENCE,
) -> AsyncIterator[InProcess]:
    """At the end every process is gone."""
    made = InProcess(models, budget_bytes, standby, patience)
    try:
        yield made
    finally:
        await made.supervisor.shutdown()
        await made.tasks.close()
    assert not made.pids.alive, f"processes are left: {made.pids.alive}"


def scripted_model(name: str, size_gb: float = 1.0, **options: Any) -> Model:
    """A scripted entry as the registry finds it; options of the entry and of the script mixed."""
    entry = {key: options.pop(key) for key in list(options) if key in Entry.__struct_fields__}
    script = Scripted(size_gb=size_gb, **options)
    return find(
        Entry(name=name, engine="scripted", scripted=script, **entry), base=Path(), environ={}
    )


def text_model(name: str, path: Path, **options: Any) -> Model:
    return find(Entry(name=name, path=str(path), **options), base=Path(), environ={})
