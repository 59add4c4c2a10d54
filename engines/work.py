"""The work thread: the only one that touches the engine, and so the model.

It owns the engine, the set of live calls and `Progress`; the I/O thread reads `Progress` and hands
over messages. A message takes effect at the next boundary between two steps. What the engine emits
in one step goes to the gateway in one write.

Failures: an `EngineError` from `submit` ends that call; a `LoadError` ends the process in an
orderly way; anything else that a step raises leaves the model in a state nobody knows, so it ends
the process at once with the traceback on stderr.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread

import msgspec

from engines import wire
from engines.base import Emit, Emitted, Engine, EngineError, LoadError
from engines.footprint import process_bytes
from engines.outbox import Outbox
from engines.process import EXIT_BUG, EXIT_LOAD_FAILED, EXIT_STOPPED

IDLE_AFTER_S = 5.0
"""Without work for this long, the engine is told to give back what it can."""

INBOX_LIMIT = 4096
"""Requests not yet looked at; more are refused. Reached only when a step takes very long."""

IMPORTED = "libraries imported"

_FULL_POLL_S = 0.05
_PUBLISH_EVERY_S = 0.25
_ENDS = (wire.Finished, wire.Failed)
_CALLS = (wire.Generate, wire.Embed, wire.Rerank, wire.Transcribe, wire.Speak)
_QUESTIONS = (wire.CountTokens, wire.Tokenize, wire.Detokenize, wire.ClearCache, wire.Warm)
_REQUESTS = (*_CALLS, *_QUESTIONS)

BuildEngine = Callable[[wire.EngineSpec, wire.Limits, Emit], Engine]


_ENGINES: dict[wire.EngineKind, tuple[str, str]] = {
    "scripted": ("engines.scripted", "ScriptedEngine"),
    "text": ("engines.text.engine", "TextEngine"),
    "vision": ("engines.vision.engine", "VisionEngine"),
    "embedding": ("engines.embedding", "EmbeddingEngine"),
    "rerank": ("engines.rerank", "RerankEngine"),
    "transcription": ("engines.transcription.engine", "TranscriptionEngine"),
    "speech": ("engines.speech.engine", "SpeechEngine"),
    "tokenizer": ("engines.tokenizer", "TokenizerEngine"),
}
"""Module and class by kind."""


def build_engine(spec: wire.EngineSpec, limits: wire.Limits, emit: Emit) -> Engine:
    """The engine that `spec` names; its libraries are imported only now."""
    module, name = _ENGINES[spec.engine]
    build: BuildEngine = getattr(importlib.import_module(module), name)
    return build(spec, limits, emit)


def import_engine(kind: str) -> None:
    """Imports what an engine of this kind needs, ahead of its `Load`. Raises what imports raise.

    An unknown kind imports nothing: the load imports what is missing.
    """
    for known, (module, _) in _ENGINES.items():
        if known == kind:
            importlib.import_module(module)


@dataclass(slots=True)
class Progress:
    """What a heartbeat tells. Written by the work thread alone."""

    steps: int = 0
    step: str = "waiting for a model"
    loaded: bool = False
    memory: wire.Memory = field(default_factory=wire.Memory)
    running: int = 0
    waiting: int = 0
    prompt_cache: wire.PromptCacheStats = field(default_factory=wire.PromptCacheStats)
    features: wire.FeatureCacheStats = field(default_factory=wire.FeatureCacheStats)


class _StopAsked(BaseException):
    """Leaves `Engine.load` between two stages; no `except Exception` on the way may keep it."""


class Work:
    """Runs one engine. `on_end` is called when nothing more will be put into `outbox`.

    `ahead` names the engine whose libraries are imported before a `Load` has come; "" is none.
    """

    def __init__(
        self, outbox: Outbox, on_end: Callable[[], None], build: BuildEngine, ahead: str = ""
    ) -> None:
        self.progress = Progress()
        self.exit_code: int | None = None
        self._outbox = outbox
        self._on_end = on_end
        self._build = build
        self._ahead = ahead
        self._inbox: queue.SimpleQueue[wire.ToEngine | None] = queue.SimpleQueue()
        self._stopping = False
        self._events: list[Emitted | wire.Answer] = []
        self._live: set[int] = set()
        self._publish_due = 0.0
        self._thread = Thread(target=self._run, name="work", daemon=True)

    # --- for the I/O thread ---------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def take(self, message: wire.ToEngine) -> None:
        """Hands a message over; a call that cannot be taken any more is refused right here."""
        if isinstance(message, _REQUESTS):
            if self._stopping:
                return self._refuse(message, "the model is being stopped")
            if self._inbox.qsize() >= INBOX_LIMIT:
                return self._refuse(message, f"{INBOX_LIMIT} requests wait to be looked at")
        self._inbox.put(message)

    def wake(self) -> None:
        """Makes a waiting work thread look around."""
        self._inbox.put(None)

    def stop(self) -> None:
        """Asks for an orderly end after the step at hand."""
        self._stopping = True
        self._inbox.put(None)

    def _refuse(self, request: wire.Request | wire.Ask, why: str) -> None:
        refusal = wire.Failed(request.id, "overloaded", why, retryable=True)
        self._outbox.put(wire.encode(refusal))

    # --- the work thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.exit_code = self._live_through()
        except BaseException:  # noqa: BLE001  the thread's outermost frame: nothing may go unseen
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(EXIT_BUG)
        self._on_end()

    def _live_through(self) -> int:
        """From load to close; returns the exit code."""
        if self._ahead:
            self._import_ahead()
        load = self._await_load()
        if load is None:
            return EXIT_STOPPED
        try:
            engine = self._load(load)
        except _StopAsked:
            return EXIT_STOPPED
        except LoadError as error:
            return self._load_failed(str(error))
        except Exception as error:  # noqa: BLE001  model libraries raise anything while they load
            traceback.print_exc()
            return self._load_failed(f"{type(error).__name__}: {error}")
        self._serve(engine)
        self._wind_up(engine)
        return EXIT_STOPPED

    def _import_ahead(self) -> None:
        self.progress.step = "importing libraries"
        import_engine(self._ahead)
        self.progress.steps += 1
        self.progress.step = "waiting for a model"
        self._outbox.put(wire.encode(wire.Loading(IMPORTED)))

    def _await_load(self) -> wire.Load | None:
        """The first message; None when the worker is stopped without ever getting one."""
        while not self._stopping:
            message = self._inbox.get()
            if isinstance(message, wire.Load):
                return message
            if message is not None:
                raise wire.WireError(f"{type(message).__name__} came before Load")
        return None

    def _load(self, load: wire.Load) -> Engine:
        self.progress.step = "load: importing libraries"
        engine = self._build(load.spec, load.limits, self._emit)
        ready = engine.load(self._report)
        memory = msgspec.structs.replace(ready.memory, process_bytes=process_bytes())
        ready = msgspec.structs.replace(ready, memory=memory)
        self.progress.steps += 1
        self.progress.loaded = True
        self._publish(engine)
        self.progress.step = "idle"
        self._outbox.put(wire.encode(ready))
        return engine

    def _report(self, loading: wire.Loading) -> None:
        if self._stopping:
            raise _StopAsked
        self.progress.steps += 1
        self.progress.step = f"load: {loading.stage}"
        self._outbox.put(wire.encode(loading))

    def _load_failed(self, message: str) -> int:
        sys.stderr.write(f"the model could not be loaded: {message}\n")
        self._outbox.put(wire.encode(wire.LoadFailed(message)))
        return EXIT_LOAD_FAILED

    def _serve(self, engine: Engine) -> None:
        while not self._stopping:
            if not self._inbox.empty():
                self._handle(engine, self._inbox.get_nowait())
            elif self._outbox.full:
                self.progress.step = "waiting for the gateway to read"
                self._wait(engine, _FULL_POLL_S)
            elif engine.busy:
                self._step(engine)
            else:
                self._rest(engine)

    def _step(self, engine: Engine) -> None:
        progress = self.progress
        progress.step = "step"
        engine.step()
        progress.steps += 1
        self._flush()
        if time.monotonic() >= self._publish_due:
            self._publish(engine)

    def _rest(self, engine: Engine) -> None:
        """Waits for something to do, without end: `stop` and every message end it.

        Meanwhile the engine does what could wait until now, a little at a time.
        """
        self._flush()
        self._publish(engine)
        waits = engine.running + engine.waiting > 0
        self.progress.step = "waiting for the gateway" if waits else "idle"
        idle_at: float | None = time.monotonic() + IDLE_AFTER_S
        while not self._stopping:
            due_s = engine.background()
            if due_s == 0:
                self._publish(engine)
            idle_s = None if idle_at is None else max(0.0, idle_at - time.monotonic())
            due = [seconds for seconds in (due_s, idle_s) if seconds is not None]
            if self._wait(engine, min(due, default=None)):
                return
            if idle_at is not None and time.monotonic() >= idle_at:
                idle_at = None
                engine.idle()
                self._publish(engine)

    def _wait(self, engine: Engine, timeout_s: float | None) -> bool:
        """Handles the next message, if one comes in time."""
        try:
            message = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return False
        self._handle(engine, message)
        return True

    def _handle(self, engine: Engine, message: wire.ToEngine | None) -> None:
        match message:
            case wire.Generate() | wire.Embed() | wire.Rerank() | wire.Transcribe() | wire.Speak():
                self._submit(engine, message)
            case wire.CountTokens() | wire.Tokenize() | wire.Detokenize():
                self._answer(engine, message)
            case wire.ClearCache() | wire.Warm():
                self._answer(engine, message)
            case wire.Credit():
                engine.credit(message.id, message.nbytes)
            case wire.Turn():
                engine.take_turn()
            case wire.Cancel():
                engine.cancel(message.id)
            case wire.SetLimits():
                engine.set_limits(message.limits)
            case wire.Load():
                raise wire.WireError("a second Load on one connection")
            case wire.Shutdown() | None:  # the I/O thread has set `_stopping`, or wants a look
                return
        self._publish(engine)

    def _submit(self, engine: Engine, request: wire.Request) -> None:
        if request.id in self._live:
            raise wire.WireError(f"call id {request.id} is in use")
        self._live.add(request.id)
        try:
            engine.submit(request)
        except Exception as error:  # noqa: BLE001  one bad request must not end the others
            self._emit(_failed(request.id, error))

    def _answer(self, engine: Engine, question: wire.Ask) -> None:
        """Its answer, or failure, leaves with the next flush, like what a step emits."""
        try:
            answer = engine.answer(question)
            size = len(wire.encode(answer))
            if size > wire.MAX_EVENT_BYTES:
                raise EngineError(
                    "invalid_request",
                    f"the answer would take {size:,} bytes; the limit is {wire.MAX_EVENT_BYTES:,}",
                )
            self._events.append(answer)
        except Exception as error:  # noqa: BLE001  one bad question must not end the calls
            self._emit(_failed(question.id, error))

    def _emit(self, event: Emitted) -> None:
        self._events.append(event)
        if isinstance(event, _ENDS):
            self._live.discard(event.id)

    def _flush(self) -> None:
        if self._events:
            self._outbox.put(wire.encode_all(self._events))
            self._events.clear()

    def _publish(self, engine: Engine) -> None:
        progress = self.progress
        progress.running = engine.running
        progress.waiting = engine.waiting
        progress.memory = engine.memory()
        progress.prompt_cache = engine.prompt_cache()
        progress.features = engine.features()
        self._publish_due = time.monotonic() + _PUBLISH_EVERY_S

    def _wind_up(self, engine: Engine) -> None:
        """The stop path: no call is left without its end, then everything is given back."""
        self.progress.step = "stopping"
        while not self._inbox.empty():
            message = self._inbox.get_nowait()
            if isinstance(message, _REQUESTS):
                self._refuse(message, "the model is being stopped")
        for call_id in sorted(self._live):
            engine.cancel(call_id)
        for call_id in sorted(self._live):
            self._emit(wire.Failed(call_id, "cancelled", "the model is being stopped"))
        self._flush()
        engine.close()


def _failed(call_id: int, error: Exception) -> wire.Failed:
    """The end of a call that was refused; what no engine foresaw goes to stderr too."""
    if isinstance(error, EngineError):
        return wire.Failed(call_id, error.code, str(error), error.retryable)
    traceback.print_exception(error)
    return wire.Failed(call_id, "engine_error", f"{type(error).__name__}: {error}")
