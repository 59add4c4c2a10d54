"""The tokenizer worker: one process that counts for models which are not loaded.

`Tokenizers` is its only owner. The process starts with the first question and ends when there has
been none for `IDLE_S`. It has no weights, holds no lease, and is nothing to the scheduler. When it
dies, the questions it had fail, and the next one starts it again after a back-off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from engines import wire
from gateway.errors import (
    BodyTooLarge,
    EngineCrashed,
    EngineHung,
    GatewayError,
    ModelUnavailable,
)
from gateway.registry.find import Model
from gateway.supervisor.engine import EngineLife
from gateway.supervisor.questions import Questions
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.watch import Patience

log = logging.getLogger("gateway.tokenizers")

ANSWER_S = 30.0
"""A large tokenizer takes seconds to load; a question behind several of them still has an end."""

IDLE_S = 600.0
RETRY_S = 1.0
MOST_RETRY_S = 60.0

_PATIENCE = Patience(load_timeout_s=60.0, hang_timeout_s=60.0, first_step_timeout_s=60.0)
_LOAD = wire.Load(wire.EngineSpec("tokenizer worker", "tokenizer"), wire.Limits(0, 0, 0, 0, 0))


def about(model: Model, question_id: int, make: Callable[[int, str], wire.Ask]) -> wire.Ask:
    """The question, addressed to the model's tokenizer.

    Raises `ModelUnavailable`, and `BodyTooLarge` when it is more than an engine reads.
    """
    if model.unavailable is not None:
        name = model.entry.name
        raise ModelUnavailable(f"model {name!r} is unavailable: {model.unavailable}")
    question = make(question_id, str(model.path or ""))
    if model.entry.trust_remote_code:
        question = msgspec.structs.replace(question, trust_remote_code=True)
    return readable(question)


def readable(question: wire.Ask) -> wire.Ask:
    """The question, if an engine reads as much. Raises `BodyTooLarge`."""
    size = len(wire.encode(question))
    if size > wire.MAX_REQUEST_BYTES:
        raise BodyTooLarge(
            f"the request takes {size:,} bytes on its way to the tokenizer; "
            f"the limit is {wire.MAX_REQUEST_BYTES:,}"
        )
    return question


def within_entry(model: Model, answer: wire.Answer) -> wire.Answer:
    """The tokenizer worker's answer, with the context length that the model's entry sets."""
    asked = model.entry.context_length
    if not isinstance(answer, wire.Tokenized) or asked is None:
        return answer
    scripted = model.entry.engine == "scripted"
    length = asked if scripted else min(asked, answer.context_length)
    return msgspec.structs.replace(answer, context_length=length)


class Notes(Protocol):
    """Keeps account of processes; must not raise."""

    def spawned(self, pid: int) -> None: ...

    def reaped(self, pid: int) -> None: ...

    def said(self, model: str, data: bytes) -> None: ...


class Tokenizers:
    """Implements the engine's `Owner`."""

    def __init__(self, tasks: Tasks, notes: Notes) -> None:
        self._tasks = tasks
        self._notes = notes
        self._loop = asyncio.get_running_loop()
        self._life: EngineLife | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = False
        self._questions = Questions()
        self._unsent: list[wire.Ask] = []
        self._idle: asyncio.TimerHandle | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._closed = False

    async def ask(self, question: wire.Ask) -> wire.Answer:
        """The answer. Raises `QueueFull`, `EngineCrashed`, `EngineHung`, and what it failed with.

        The question's id must be its own among those under way.
        """
        self._start()
        asked = self._questions.add(question)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._ready and self._life is not None:
            self._life.ask(question)
        else:
            self._unsent.append(question)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asked
        except TimeoutError:
            raise EngineHung(
                f"the tokenizer worker did not answer within {ANSWER_S:g} s", retry_after_s=5
            ) from None
        finally:
            self._unsent = [unsent for unsent in self._unsent if unsent is not question]
            self._rest()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._life.pid if self._life is not None else None

    async def close(self) -> None:
        """Ends the process for good and waits until it is reaped (bounded by its end)."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        self._stop("the gateway stops")
        if self._task is not None:
            await asyncio.wait([self._task])

    # --- its life -----------------------------------------------------------------------------

    def _start(self) -> None:
        """Sees to it that there is a process, now or once the one that leaves is gone."""
        if self._closed:
            raise EngineCrashed("the gateway stops")
        if self._life is not None:
            return
        wait = self._retry_at - self._loop.time()
        if wait > 0:
            raise EngineCrashed(
                "the tokenizer worker has failed and is not tried again yet", retry_after_s=wait
            )
        self._life = EngineLife(_LOAD, {}, _PATIENCE, self)
        self._task = self._tasks.supervised(
            "tokenizer worker", self._live(self._life), self._on_bug
        )

    async def _live(self, life: EngineLife) -> None:
        exit_ = await life.run()
        pid = life.pid
        if exit_.how == "asked":
            self._over(None)
        else:
            log.error("tokenizer worker pid %s %s: %s", pid, exit_.how, exit_.cause)
            kind = EngineHung if exit_.how == "hung" else EngineCrashed
            self._over(kind(f"the tokenizer worker: {exit_.cause}", retry_after_s=RETRY_S))

    def _on_bug(self, error: Exception) -> None:
        self._over(EngineCrashed(f"the gateway failed while running the tokenizer worker: {error}"))

    def _over(self, failure: GatewayError | None) -> None:
        if self.pid is not None:
            self._notes.reaped(self.pid)
        self._life = self._task = None
        self._ready = False
        if failure is not None:
            self._retry_at = self._loop.time() + min(RETRY_S * 2**self._failures, MOST_RETRY_S)
            self._failures += 1
            self._unsent.clear()
            self._questions.fail_all(failure)
        elif self._unsent and not self._closed:
            self._start()  # they came while the one before was on its way out

    def _rest(self) -> None:
        if not self._questions and not self._closed and self._idle is None:
            self._idle = self._loop.call_later(IDLE_S, self._on_idle)

    def _on_idle(self) -> None:
        self._idle = None
        self._stop(f"nothing was counted for {IDLE_S:g} s")

    def _stop(self, reason: str) -> None:
        self._ready = False
        if self._life is not None:
            self._life.stop(reason)

    # --- what the process says ------------------------------------------------------------------

    def on_spawned(self, pid: int) -> None:
        self._notes.spawned(pid)

    def on_stderr(self, data: bytes) -> None:
        self._notes.said(_LOAD.spec.name, data)

    def on_loading(self, message: wire.Loading) -> None:
        """It has no weights to tell about."""

    def on_ready(self, message: wire.Ready) -> None:
        log.info("tokenizer worker pid %s is ready", self.pid)
        self._ready = True
        unsent, self._unsent = self._unsent, []
        for question in unsent:
            if self._life is not None:
                self._life.ask(question)

    def on_heartbeat(self, message: wire.Heartbeat) -> None:
        """It has no footprint that would be charged to a model."""

    def on_call_event(self, message: wire.CallEvent) -> None:
        if isinstance(message, wire.Failed):
            self._questions.on_failed(message)

    def on_answer(self, message: wire.Answer) -> None:
        self._failures = 0
        self._questions.on_answer(message)

    def on_turn_wanted(self) -> None:
        """It does nothing long."""

    def on_turn_over(self) -> None:
        """It does nothing long."""
