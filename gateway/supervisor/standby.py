"""Spare engine processes that have their imports done, so that a load is the weights alone.

`Standby` is the one owner of spares: it starts them, hands them over to loads, and ends them. It
never polls: the supervisor calls `settle` after whatever changes how many there should be (a
model's transition, a reload, a look at the memory), and `Standby` asks for it when a spare has
ended or may be tried again.

How a spare counts against the budget: the scheduler does not know of spares, so none can make a
model that fits alone not fit. Instead a spare lives only in what the ledger leaves free: as soon
as a reservation, a measurement or a lower budget takes that room, spares are told to go, and the
load that needs it begins when they are reaped (`leaving`). A load that takes a spare over needs no
more room, for its reservation has the process in it. A new spare is started only while nothing
loads or unloads: after a load, not beside it.

A spare that dies, hangs or does not answer its `Load` costs a model at most `ANSWER_S`: its load
begins again with a process of its own, and the next spare of that kind waits for a back-off.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engines import wire
from gateway.registry.limits import PROCESS_BYTES
from gateway.residency import Snapshot, State
from gateway.supervisor.link import Receiver
from gateway.supervisor.process import (
    Started,
    engine_environment,
    exited_or,
    finish,
    start,
)
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.watch import Patience, Watch

log = logging.getLogger("gateway.standby")

Kind = wire.EngineKind
"""What a spare has imported: an `EngineSpec.engine`."""

IMPORT_TIMEOUT_S = 120.0
ANSWER_S = 5.0
"""A spare with its imports done answers a `Load` at once."""

STOP_S = 2.0
"""A spare holds nothing that would need an orderly end, so KILL comes early."""

RETRY_S = 10.0
MOST_RETRY_S = 300.0


def wanted_kinds(count: int, users: Iterable[tuple[Kind | None, int]]) -> tuple[Kind, ...]:
    """What `count` spares should import, the most used first, in turn if there are several.

    Each of `users` is a model: its kind, None when it cannot use a spare, and its loads so far.
    Use is compared in powers of two: else two kinds used alike would replace each other's spares.
    """
    uses: Counter[Kind] = Counter()
    for kind, loads in users:
        if kind is not None:
            uses[kind] += 1 + loads
    ranked = sorted(uses, key=lambda kind: -uses[kind].bit_length())
    return tuple(itertools.islice(itertools.cycle(ranked), count))


def default_count() -> int:
    """One spare where loading is what counts; none where a CPU has better things to do."""
    return 1 if sys.platform == "darwin" or _has_cuda() else 0


def _has_cuda() -> bool:
    """Whether MLX's CUDA build is installed, which the gateway may not import to find out."""
    from importlib.metadata import distributions

    return any((found.name or "").lower().startswith("mlx-cuda") for found in distributions())


class Notes(Protocol):
    """Keeps account of processes; must not raise."""

    def spawned(self, pid: int) -> None: ...

    def reaped(self, pid: int) -> None: ...


@dataclass(slots=True)
class _BackOff:
    """Failures of one kind since a spare of it last served."""

    failures: int = 0
    until: float = 0.0

    def fail(self, now: float) -> None:
        self.until = now + min(RETRY_S * 2**self.failures, MOST_RETRY_S)
        self.failures += 1


class Spare:
    """One process, from its start until it is handed over or reaped."""

    def __init__(self, kind: Kind, owner: Standby) -> None:
        self.kind: Kind = kind
        self.leaving = False
        self.imported = False
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(Patience(load_timeout_s=IMPORT_TIMEOUT_S), self._loop.time())
        self._began = self._loop.time()
        self._process: Started | None = None
        self._hello: wire.Hello | None = None
        self._fault: str | None = None
        self._taken = False
        self._nudge = asyncio.Event()

    @property
    def started(self) -> Started:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int | None:
        return self._process.process.pid if self._process is not None else None

    @property
    def usable(self) -> bool:
        """Whether it can be handed over now; its imports may still be under way."""
        return (
            self._process is not None
            and not self._process.process.exited.done()
            and not self.leaving
            and self._fault is None
        )

    def stop(self) -> None:
        self.leaving = True
        self._nudge.set()

    # --- for the engine that takes it ---------------------------------------------------------

    def hand_over(self, receiver: Receiver) -> wire.Hello | None:
        """From here on process and link are `receiver`'s; returns its `Hello`, if it has come."""
        self._taken = True
        self.started.link.hand_over(receiver)
        self._nudge.set()
        return self._hello

    def answer_by(self, now: float) -> float:
        """When it must have answered a `Load` that it gets now."""
        return now + ANSWER_S if self.imported else self._began + IMPORT_TIMEOUT_S

    def answered(self) -> None:
        self._owner.on_answered(self.kind)

    def failed(self, why: str) -> None:
        """It was taken over, did not answer, and is reaped."""
        self._owner.on_failed(self, why)

    # --- its life -----------------------------------------------------------------------------

    async def live(self, notes: Notes) -> str | None:
        """Until it is handed over, told to go or in trouble; the last gives the reason.

        Unless it is handed over, its process is reaped at the return.
        """
        environment = engine_environment(os.environ, {wire.IMPORT_VARIABLE: self.kind})
        try:
            self._process = started = await start(self, environment)
        except OSError as error:
            return f"it did not start: {error}"
        try:
            notes.spawned(started.process.pid)
            stuck = await self._until_over(started)
            self._fault = self._fault or stuck
            if not self._taken and not stuck:
                started.link.send(wire.Shutdown(STOP_S))
                await asyncio.wait([started.process.exited], timeout=STOP_S)
        finally:
            if not self._taken:
                await finish(started)
        if self._taken or self.leaving:
            return None
        how = started.process.describe_exit()
        return how if self._fault is None else f"{self._fault} ({how})"

    async def _until_over(self, started: Started) -> str | None:
        """Waits until it is somebody else's, should go, has ended, or is stuck: the verdict."""
        while not (self._taken or self.leaving or self._fault or started.process.exited.done()):
            now = self._loop.time()
            stuck = self._watch.overdue(now)
            if stuck is not None:
                return stuck
            wait = max(0.05, self._watch.deadline() - now)
            await exited_or(self._nudge, started.process, wait)
        return None

    # --- what its link hears until then -------------------------------------------------------

    def on_message(self, message: wire.FromEngine) -> None:
        now = self._loop.time()
        match message:
            case wire.Hello():
                self._hello = message
                self._watch.on_hello(now)
            case wire.Loading():
                self.imported = True
                self._watch.on_ready(now)
                if not self.leaving:
                    log.info("spare pid %s (%s) is ready for a model", self.pid, self.kind)
            case wire.Heartbeat():
                self._watch.on_heartbeat(now, message)
            case _:
                self._fault = self._fault or f"it said {type(message).__name__} without a model"
        self._nudge.set()

    def on_link_lost(self, reason: str) -> None:
        self._fault = self._fault or reason
        self._nudge.set()


class Standby:
    """The spares. All methods but `close` are synchronous.

    `on_change` is called when a spare has ended or may be tried again; it should call `settle`.
    """

    def __init__(self, tasks: Tasks, notes: Notes, on_change: Callable[[], None]) -> None:
        self._tasks = tasks
        self._notes = notes
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._spares: dict[Spare, asyncio.Task[None]] = {}
        self._back_off: dict[Kind, _BackOff] = {}
        self._retry: asyncio.TimerHandle | None = None

    def settle(self, count: int, view: Snapshot, kinds: Mapping[str, Kind | None]) -> None:
        """Ends what should not be there, and starts what should be if nothing loads or unloads.

        `kinds` says for each model what a spare for it has to import, None when it cannot use one.
        """
        room = 0 if view.pressure != "normal" else view.ledger.available
        users = (
            (kinds.get(model.name), model.loads)
            for model in view.models
            if model.state is not State.UNAVAILABLE
        )
        wanted = wanted_kinds(count, users)[: room // PROCESS_BYTES]
        missing = self._end_surplus(wanted)
        moving = (State.LOADING, State.UNLOADING)
        if any(model.state in moving for model in view.models):
            return
        places = room // PROCESS_BYTES - len(self._spares)
        for kind in missing[: max(0, places)]:
            self._start(kind)

    def take(self, kind: Kind | None) -> Spare | None:
        """A spare for one load; from here on it is the taker's, who must call `hand_over`."""
        usable = [spare for spare in self._spares if spare.kind == kind and spare.usable]
        usable.sort(key=lambda spare: not spare.imported)
        if not usable:
            return None
        del self._spares[usable[0]]
        return usable[0]

    @property
    def leaving(self) -> list[asyncio.Task[None]]:
        """The ends of spares that hold memory until they are reaped."""
        return [task for spare, task in self._spares.items() if spare.leaving]

    @property
    def spares(self) -> list[Spare]:
        """For reading: status and metrics."""
        return list(self._spares)

    def end_all(self) -> None:
        for spare in self._spares:
            spare.stop()
        if self._retry is not None:
            self._retry.cancel()

    async def close(self) -> None:
        """Ends all and waits until they are reaped (bounded by each one's end)."""
        self.end_all()
        if self._spares:
            await asyncio.wait(self._spares.values())

    # --- for spares ---------------------------------------------------------------------------

    def on_answered(self, kind: Kind) -> None:
        self._back_off.pop(kind, None)

    def on_failed(self, spare: Spare, why: str) -> None:
        """It is reaped, and was no use."""
        back_off = self._back_off.setdefault(spare.kind, _BackOff())
        back_off.fail(self._loop.time())
        log.warning(
            "spare pid %s (%s): %s; another one in %g s at the earliest, loads start without",
            spare.pid,
            spare.kind,
            why,
            back_off.until - self._loop.time(),
        )
        self._forget(spare)

    # --- inside -------------------------------------------------------------------------------

    def _end_surplus(self, wanted: tuple[Kind, ...]) -> list[Kind]:
        """Ends the spares beyond `wanted`, and returns which of these are not there."""
        missing = list(wanted)
        for spare in self._spares:
            if spare.leaving:
                continue
            if spare.kind in missing:
                missing.remove(spare.kind)
            else:
                spare.stop()
        return missing

    def _start(self, kind: Kind) -> None:
        back_off = self._back_off.get(kind)
        if back_off is not None and back_off.until > self._loop.time():
            self._try_again(back_off.until)
            return
        spare = Spare(kind, self)
        self._spares[spare] = self._tasks.supervised(
            f"spare {kind}", self._live(spare), lambda error: self._on_bug(spare, error)
        )

    def _try_again(self, at: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._loop.call_at(at, self._on_change)

    async def _live(self, spare: Spare) -> None:
        why = await spare.live(self._notes)
        if why is not None:
            self.on_failed(spare, why)
        elif spare in self._spares:
            self._forget(spare)

    def _on_bug(self, spare: Spare, error: Exception) -> None:
        self.on_failed(spare, f"the gateway failed while running it: {error}")

    def _forget(self, spare: Spare) -> None:
        self._spares.pop(spare, None)
        if spare.pid is not None:
            self._notes.reaped(spare.pid)
        self._on_change()
