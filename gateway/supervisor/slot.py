"""One model's place in the supervisor: its engine, if there is one, and the calls on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engines import wire
from gateway import errors
from gateway.registry.find import Model
from gateway.residency import (
    CancelLeases,
    ModelSpec,
    Priority,
    Reject,
    SetLimits,
    Stop,
    Transition,
)
from gateway.supervisor.call import Call
from gateway.supervisor.engine import EngineLife, Exit
from gateway.supervisor.probe import Probe, measured_bytes
from gateway.supervisor.questions import Questions, error_of
from gateway.supervisor.standby import Kind, Spare
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.watch import Patience

log = logging.getLogger("gateway.engine")


class Observer(Protocol):
    """Hears of everything worth a log line or a metric; must not raise.

    `asked` is the name that a call's client used: that of a variant where `model` is its base.
    """

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

    def reaped(self, pid: int) -> None:
        """A process that never had a model is gone."""

    def said(self, model: str, data: bytes) -> None:
        """On stderr; no bytes mean that the process is gone."""

    def loading(self, model: str, progress: wire.Loading) -> None: ...

    def loaded(self, model: Model, ready: wire.Ready, seconds: float) -> None: ...

    def finished(self, asked: str, finished: wire.Finished) -> None: ...

    def turn_granted(self, model: str, waited_s: float) -> None:
        """It may take in a long prompt now."""

    def exited(self, model: str, pid: int | None, exit_: Exit) -> None: ...


class Events(Protocol):
    """The supervisor, as a slot sees it."""

    def on_loading(self, name: str, done: int, total: int) -> None: ...

    def on_ready(self, name: str, measured_bytes: int) -> None: ...

    def on_footprint(self, name: str, measured_bytes: int) -> None: ...

    def on_released(self, call_id: int) -> None: ...

    def on_turn_wanted(self, name: str) -> None: ...

    def on_turn_over(self, name: str) -> None:
        """Also told when it had none: the engine stops, or is gone."""

    def on_load_failed(self, name: str, cause: str, stranded_bytes: int) -> None: ...

    def on_exited(self, name: str, cause: str | None, stranded_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """A model as a registry has it, with the reservation that follows from the budget."""

    model: Model
    limits: wire.Limits
    patience: Patience
    expected_load_s: float | None = None
    disk: wire.DiskCache | None = None


def model_spec(terms: Terms) -> ModelSpec:
    """A registry model as the scheduler sees it."""
    entry = terms.model.entry
    return ModelSpec(
        name=entry.name,
        charge_bytes=terms.limits.charge_bytes,
        prompt_cache_bytes=terms.limits.prompt_cache_bytes,
        max_concurrency=1 if entry.continuous_batching is False else entry.max_concurrency,
        max_queue=entry.max_queue,
        priority=Priority[entry.priority.upper()],
        pin=entry.pin,
        ttl_s=entry.ttl_s,
        unavailable=terms.model.unavailable,
        expected_load_s=terms.expected_load_s,
    )


def engine_spec(
    model: Model, load_number: int, disk: wire.DiskCache | None = None
) -> wire.EngineSpec:
    """What the engine process is told about its model."""
    entry = model.entry
    scripted = {}
    if entry.engine == "scripted":
        # Each load is a new process, so the engine cannot count its own.
        options = msgspec.to_builtins(entry.scripted) if entry.scripted else {}
        scripted = {**options, "load_number": load_number}
    return wire.EngineSpec(
        name=entry.name,
        engine=_engine_kind(model),
        path=str(model.path or ""),
        context_length=entry.context_length,
        trust_remote_code=entry.trust_remote_code,
        prefill_step_size=entry.prefill_step_size,
        step_target_s=entry.step_target_ms / 1000,
        scripted=scripted,
        disk_cache=disk,
    )


def _engine_kind(model: Model) -> wire.EngineKind:
    """Which engine serves it."""
    return model.entry.engine or model.entry.kind or "text"


class Slot:
    """One model: an `EngineLife` while it lives, and its running calls by id.

    Implements the engine's `Owner`: it translates what the engine says for the supervisor and for
    the calls, and decides nothing.
    """

    def __init__(self, terms: Terms, probe: Probe, events: Events, observer: Observer) -> None:
        self.terms = terms
        self.name = terms.model.entry.name
        self.calls: dict[int, Call] = {}
        self._questions = Questions()
        self.pid: int | None = None
        self.heartbeat: wire.Heartbeat | None = None
        self.heard_at = 0.0
        self.ready: wire.Ready | None = None
        self.load_seconds: float | None = None
        self._next_terms: Terms | None = None
        self._probe = probe
        self._events = events
        self._observer = observer
        self._engine: EngineLife | None = None
        self._task: asyncio.Task[None] | None = None
        self.loads = 0
        self._started_at = 0.0
        self._available_before = 0

    @property
    def model(self) -> Model:
        """What the process at hand was started with, live changes applied; else what is next."""
        return self.terms.model

    @property
    def keeps_on_disk(self) -> bool:
        """Its engine sees to the files of its prompts."""
        return self.terms.disk is not None

    # --- what the supervisor asks -------------------------------------------------------------

    @property
    def spare_kind(self) -> Kind | None:
        """What a spare for its next load has to import; an environment of its own rules one out."""
        return None if self.model.entry.env else _engine_kind(self.model)

    def start(
        self,
        tasks: Tasks,
        spare: Spare | None = None,
        leaving: Sequence[asyncio.Task[None]] = (),
    ) -> None:
        """Begins a new life, in the process of `spare` where there is one, once `leaving` is over.

        The life before is over, or the scheduler is wrong.
        """
        assert self._engine is None
        load = wire.Load(engine_spec(self.model, self.loads, self.terms.disk), self.terms.limits)
        self.loads += 1
        self._started_at = asyncio.get_running_loop().time()
        env, patience = self.model.entry.env, self.terms.patience
        self._engine = EngineLife(load, env, patience, self, spare)
        self._task = tasks.supervised(f"engine {self.name}", self._live(leaving), self._on_bug)

    def configure(self, terms: Terms, *, restart: bool) -> None:
        """Takes over what a new registry says: at once, or for the next life.

        While a life ends for a restart, what comes after that is for the next life as well.
        """
        if self._engine is not None and (restart or self._next_terms is not None):
            self._next_terms = terms
            return
        before, self.terms = self.terms, terms
        if self._engine is None:
            return
        if terms.limits != before.limits:
            self._engine.send(wire.SetLimits(terms.limits))
        if terms.patience != before.patience:
            self._engine.be(terms.patience)

    def stop(self, reason: str) -> asyncio.Task[None] | None:
        """Asks the engine to go; returns the task of its life, None when there is none."""
        if self._engine is not None:
            self._engine.stop(reason)
            self._events.on_turn_over(self.name)
        return self._task

    def serve(self, call: Call) -> None:
        assert self._engine is not None
        self.calls[call.id] = call
        self._engine.serve(call.frame)
        call.frame = b""

    def ask(self, question: wire.Ask) -> asyncio.Future[wire.Answer]:
        """Asks the engine something small, which takes no lease; it has to be ready.

        Raises `QueueFull`.
        """
        assert self._engine is not None
        answer = self._questions.add(question)
        self._engine.ask(question)
        return answer

    def cancel(self, call_id: int, reason: str) -> None:
        """The lease stays until the engine confirms."""
        if self._engine is not None and call_id in self.calls:
            self._engine.send(wire.Cancel(call_id, reason))

    def grant_turn(self) -> None:
        """The engine may begin what it asked a turn for."""
        if self._engine is not None:
            self._engine.grant_turn()

    def credit(self, call_id: int, nbytes: int) -> None:
        """The client of a call that sends by credit has taken so many bytes."""
        if self._engine is not None and call_id in self.calls:
            self._engine.send(wire.Credit(call_id, nbytes))

    def set_prompt_cache(self, prompt_cache_bytes: int) -> None:
        if self._engine is not None:
            changed = msgspec.structs.replace(
                self.terms.limits, prompt_cache_bytes=prompt_cache_bytes
            )
            self._engine.send(wire.SetLimits(changed))

    # --- one life -----------------------------------------------------------------------------

    async def _live(self, leaving: Sequence[asyncio.Task[None]]) -> None:
        assert self._engine is not None
        if leaving:
            await asyncio.wait(leaving)
        exit_ = await self._engine.run()
        self._fail_calls(exit_)  # clients need not wait until the memory is back
        measured = measured_bytes(self.model.entry, self._last_memory())
        self._over(exit_, await self._probe.stranded_bytes(self._available_before, measured))

    def _last_memory(self) -> wire.Memory:
        if self.heartbeat is not None:
            return self.heartbeat.memory
        return self.ready.memory if self.ready is not None else wire.Memory()

    def _on_bug(self, error: Exception) -> None:
        if self._engine is not None:
            ready = self.ready is not None
            cause = f"the gateway failed while running it: {error}"
            self._over(Exit("crashed" if ready else "load_failed", cause, ready))

    def _over(self, exit_: Exit, stranded_bytes: int = 0) -> None:
        pid = self.pid
        self._engine = self._task = self.pid = self.heartbeat = self.ready = None
        if self._next_terms is not None:
            self.terms, self._next_terms = self._next_terms, None
        self._events.on_turn_over(self.name)
        self._observer.exited(self.name, pid, exit_)
        self._observer.said(self.name, b"")
        self._fail_calls(exit_)
        match exit_.how:
            case "asked":
                self._events.on_exited(self.name, None, stranded_bytes)
            case "load_failed":
                self._events.on_load_failed(self.name, exit_.cause, stranded_bytes)
            case "crashed" | "hung":
                self._events.on_exited(self.name, exit_.cause, stranded_bytes)

    def _fail_calls(self, exit_: Exit) -> None:
        """Calls that were running when the process went; the scheduler drops their leases."""
        calls, self.calls = self.calls, {}
        kind = errors.EngineHung if exit_.how == "hung" else errors.EngineCrashed
        message = f"model {self.name!r}: {exit_.cause}"
        for call in calls.values():
            call.fail(kind(message, retry_after_s=1))
        self._questions.fail_all(kind(message, retry_after_s=1))

    # --- what the engine says -----------------------------------------------------------------

    def on_spawned(self, pid: int) -> None:
        self.pid = pid
        self._observer.spawned(pid)

    def on_stderr(self, data: bytes) -> None:
        self._observer.said(self.name, data)

    def on_loading(self, message: wire.Loading) -> None:
        self._observer.loading(self.name, message)
        self._events.on_loading(self.name, message.done_bytes, message.total_bytes)

    def on_ready(self, message: wire.Ready) -> None:
        self.ready = message
        self.heartbeat = None  # the last one is from before the model was there
        self.load_seconds = asyncio.get_running_loop().time() - self._started_at
        self._observer.loaded(self.model, message, self.load_seconds)
        self._events.on_ready(self.name, measured_bytes(self.model.entry, message.memory))

    def on_heartbeat(self, message: wire.Heartbeat) -> None:
        self.heartbeat = message
        self.heard_at = asyncio.get_running_loop().time()
        self._available_before = self._probe.available_bytes()
        if self.ready is not None:
            self._events.on_footprint(self.name, measured_bytes(self.model.entry, message.memory))

    def on_call_event(self, message: wire.CallEvent) -> None:
        call = self.calls.get(message.id)
        if call is None:
            self._no_call(message)
            return
        if type(message) is wire.Finished or type(message) is wire.Failed:
            del self.calls[message.id]
            if isinstance(message, wire.Finished):
                call.push(message)
                self._observer.finished(call.asked, message)
            else:
                call.fail(error_of(message))
            self._events.on_released(message.id)
            return
        call.push(message)  # type: ignore[arg-type]  # not Finished or Failed: tested above
        if call.overflowing:
            call.overflow()
            self.cancel(message.id, "the client does not read")

    def on_answer(self, message: wire.Answer) -> None:
        self._questions.on_answer(message)

    def on_turn_wanted(self) -> None:
        self._events.on_turn_wanted(self.name)

    def on_turn_over(self) -> None:
        self._events.on_turn_over(self.name)

    def _no_call(self, message: wire.CallEvent) -> None:
        """What crossed our cancel is dropped: its lease is over; a question may have failed."""
        if isinstance(message, wire.Failed):
            self._questions.on_failed(message)
