"""One engine process's whole life, in order: spawn, hello, load, serve, end, reap.

`EngineLife.run` is that life as one coroutine; it returns only when the process is reaped. The
owner hears of everything else through `Owner`, and steers with `send` and `stop`, both synchronous.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from engines import wire
from gateway.supervisor.process import (
    Process,
    Started,
    engine_environment,
    exited_or,
    finish,
    start,
)
from gateway.supervisor.standby import Spare
from gateway.supervisor.watch import Patience, Watch

log = logging.getLogger("gateway.engine")

STOP_GRACE_S = 10.0
STOP_SLACK_S = 1.0
KILL_AFTER_S = 15.0
LAST_WORDS = 60
"""Lines of stderr that go to the log when an engine had to be killed."""

How = Literal["asked", "crashed", "hung", "load_failed"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a life ended. `was_ready` tells a failed load from a crash while serving."""

    how: How
    cause: str
    was_ready: bool


class Owner(Protocol):
    """What an engine tells; none of these may raise."""

    def on_spawned(self, pid: int) -> None: ...

    def on_stderr(self, data: bytes) -> None: ...

    def on_loading(self, message: wire.Loading) -> None: ...

    def on_ready(self, message: wire.Ready) -> None: ...

    def on_heartbeat(self, message: wire.Heartbeat) -> None: ...

    def on_call_event(self, message: wire.CallEvent) -> None: ...

    def on_answer(self, message: wire.Answer) -> None: ...

    def on_turn_wanted(self) -> None:
        """It waits for `grant_turn` before it does something long."""

    def on_turn_over(self) -> None: ...


class EngineLife:
    """One process for one model. `run` once; `send` and `stop` at any time.

    A `spare` has been started before, for any model. It gets the `Load`, and where it does not
    answer that, the life begins again with a process of its own.
    """

    def __init__(
        self,
        load: wire.Load,
        environment: Mapping[str, str],
        patience: Patience,
        owner: Owner,
        spare: Spare | None = None,
    ) -> None:
        self.name = load.spec.name
        self.pid: int | None = None
        self._load = load
        self._environment = environment
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._watch = Watch(patience, self._loop.time())
        self._started: Started | None = None
        self._hello: wire.Hello | None = None
        self._load_sent = False
        self._ready = False
        self._killed = False
        self._stop_reason: str | None = None
        self._load_failure: str | None = None
        self._fault: str | None = None
        self._nudge = asyncio.Event()
        self._spare = spare
        self._answered = spare is None
        self._answer_by = 0.0
        if spare is not None:
            self._hello = spare.hand_over(self)
            self._answer_by = spare.answer_by(self._loop.time())

    def send(self, message: wire.ToEngine) -> None:
        """Sends a message; what cannot be sent, because the engine is going, is dropped."""
        if isinstance(message, wire.SetLimits):
            # Also for a process that begins the load anew, where a spare does not take it.
            self._load = wire.Load(self._load.spec, message.limits)
            if not self._load_sent:
                return
        if self._started is not None:
            self._started.link.send(message)

    def serve(self, frame: bytes) -> None:
        """Sends one call's request."""
        if self._started is not None:
            self._started.link.send_frame(frame)
        self._watch.on_call(self._loop.time())
        self._nudge.set()  # the deadline has come nearer

    def ask(self, question: wire.Ask) -> None:
        """Sends a small question; until it is answered, standing still is a fault."""
        self._watch.on_call(self._loop.time())
        self._nudge.set()  # the deadline has come nearer
        self.send(question)

    def grant_turn(self) -> None:
        """What it waits for after `on_turn_wanted`."""
        self._watch.on_turn(self._loop.time())
        self._nudge.set()  # the deadline has come nearer
        self.send(wire.Turn())

    def be(self, patience: Patience) -> None:
        """Takes over how patient the registry is now."""
        self._patience = patience
        self._watch.be(patience)
        self._nudge.set()  # the deadline may have come nearer

    def stop(self, reason: str) -> None:
        """Asks for an orderly end; a second call changes nothing."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._nudge.set()

    async def run(self) -> Exit:
        if self._spare is not None:
            exit_ = await self._live(self._spare.started)
            if self._answered or self._stop_reason is not None:
                return exit_
            self._spare.failed(exit_.cause)
            self._leave_spare()
        if self._stop_reason is not None:  # it was over before it began
            return Exit("asked", self._stop_reason, False)
        try:
            environment = engine_environment(os.environ, self._environment)
            started = await start(self, environment)
        except OSError as error:
            return Exit("load_failed", f"the engine process did not start: {error}", False)
        return await self._live(started)

    def _leave_spare(self) -> None:
        """Back to the beginning: a bad spare is not the model's fault."""
        self._spare = self._started = self._hello = self._fault = None
        self._answered, self._load_sent, self._killed = True, False, False
        self._watch = Watch(self._patience, self._loop.time())

    async def _live(self, started: Started) -> Exit:
        """From the spawn to the reap, whatever happens in between."""
        process = started.process
        try:
            self._started = started
            self.pid = process.pid
            self._owner.on_spawned(process.pid)
            process.listen(self._owner.on_stderr)
            self._greet()
            verdict = await self._until_over(process)
            await self._end(process, kill=verdict is not None)
        finally:
            await finish(started)
        self._log_last_words(process)
        return self._exit(process, verdict)

    async def _until_over(self, process: Process) -> str | None:
        """Waits until the process exits, should stop, or is stuck; the last gives the verdict."""
        while True:
            if process.exited.done() or self._stop_reason or self._load_failure or self._fault:
                return None
            verdict = self._overdue(self._loop.time())
            if verdict is not None:
                log.error("engine %s: %s; killing pid %s", self.name, verdict, process.pid)
                return verdict
            wait = max(0.05, self._deadline() - self._loop.time())
            await exited_or(self._nudge, process, wait)

    def _overdue(self, now: float) -> str | None:
        if not self._answered and now >= self._answer_by:
            return "the spare process did not take the model in time"
        return self._watch.overdue(now)

    def _deadline(self) -> float:
        deadline = self._watch.deadline()
        return deadline if self._answered else min(deadline, self._answer_by)

    async def _end(self, process: Process, *, kill: bool) -> None:
        """Shutdown, then TERM, then KILL; a stuck engine is killed at once."""
        if process.exited.done():
            return
        if not kill:
            self.send(wire.Shutdown(STOP_GRACE_S))
            await asyncio.wait([process.exited], timeout=STOP_GRACE_S + STOP_SLACK_S)
        if not kill and not process.exited.done():
            log.warning("engine %s: does not stop; sending SIGTERM to %s", self.name, process.pid)
            process.terminate()
            wait = KILL_AFTER_S - STOP_GRACE_S - STOP_SLACK_S
            await asyncio.wait([process.exited], timeout=wait)
        if not process.exited.done():
            self._killed = True
            await process.dump_stacks()
            process.kill()

    def _log_last_words(self, process: Process) -> None:
        """Where a killed engine was stuck: its stacks are the last thing on its stderr."""
        lines = process.last_lines[-LAST_WORDS:] if self._killed else []
        if lines:
            text = "\n".join(lines)
            log.error("engine %s: last on the stderr of pid %s:\n%s", self.name, process.pid, text)

    def _exit(self, process: Process, verdict: str | None) -> Exit:
        if verdict is not None:
            return Exit("hung" if self._ready else "load_failed", verdict, self._ready)
        if self._load_failure is not None:
            return Exit("load_failed", self._load_failure, False)
        if self._fault is None and self._stop_reason is not None:
            return Exit("asked", self._stop_reason, self._ready)
        cause = process.describe_exit()
        if self._fault is not None and not cause.startswith("killed"):
            cause = f"{self._fault} ({cause})"
        return Exit("crashed" if self._ready else "load_failed", cause, self._ready)

    # --- what the link hears ------------------------------------------------------------------

    def on_message(self, message: wire.FromEngine) -> None:
        # Deltas are nearly all of the traffic.
        if type(message) is wire.TextDelta:
            self._owner.on_call_event(message)
            return
        match message:
            case wire.Hello():
                self._hello = message
                self._greet()
            case wire.Loading() | wire.Ready() | wire.LoadFailed() | wire.Heartbeat():
                self._on_life_sign(message)
            case wire.Counted() | wire.Tokenized() | wire.Detokenized() | wire.Cleared():
                self._watch.on_call_over()
                self._owner.on_answer(message)
            case wire.WantTurn():
                self._watch.on_turn_wanted()
                self._owner.on_turn_wanted()
            case wire.TurnOver():
                self._watch.on_turn(self._loop.time())
                self._owner.on_turn_over()
            case wire.Finished() | wire.Failed():
                self._watch.on_call_over()
                self._owner.on_call_event(message)
            case _:
                self._owner.on_call_event(message)

    def _on_life_sign(
        self, message: wire.Loading | wire.Ready | wire.LoadFailed | wire.Heartbeat
    ) -> None:
        now = self._loop.time()
        if isinstance(message, wire.Heartbeat):
            self._watch.on_heartbeat(now, message)
            self._owner.on_heartbeat(message)
            return
        self._on_answer()
        match message:
            case wire.Loading():
                self._watch.on_loading(now)
                self._owner.on_loading(message)
            case wire.Ready():
                self._ready = True
                self._watch.on_ready(now)
                self._owner.on_ready(message)
            case wire.LoadFailed():
                self._load_failure = message.message
                self._nudge.set()

    def on_link_lost(self, reason: str) -> None:
        # An engine that was asked to stop closes its end; that is no fault.
        if self._stop_reason is None:
            self._fault = reason
            self._nudge.set()

    def _greet(self) -> None:
        """Once there is both a connection and a `Hello` on it: the `Load`, if the two agree."""
        if self._started is None or self._hello is None or self._load_sent:
            return
        hello, token = self._hello, self._started.token
        if hello.version != wire.WIRE_VERSION or not secrets.compare_digest(hello.token, token):
            self.on_link_lost("the engine speaks another version of the wire")
            return
        self._watch.on_hello(self._loop.time())
        self._nudge.set()  # the deadline has come nearer
        self.send(self._load)
        self._load_sent = True

    def _on_answer(self) -> None:
        if self._spare is not None and not self._answered:
            self._spare.answered()
        self._answered = True
