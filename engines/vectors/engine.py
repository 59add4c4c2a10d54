"""The engine of models that take whole texts: calls in, rows through the model batch by batch.

One batch is one step, so a cancel takes effect between two batches. The size of a batch is learned
from how long the last ones took. A large one needs the engine's turn among all engines, as a long
prefill does; meanwhile calls that are small as a whole go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, Protocol

import mlx.core as mx

from engines import wire
from engines.base import Emit, EngineError, Plain, Report
from engines.text.limits import DeviceMemory, Mlx
from engines.turns import LONG, PrefillTurn
from engines.vectors.batches import Batch, Cost, Pace, Pending, Room, Row, padded, take_batch
from engines.vectors.tokens import Texts

_log = logging.getLogger(__name__)

_WORK = 0
"""The turn is wanted for whatever is next, not for one call."""


class Model(Protocol):
    """A loaded model."""

    weights_bytes: int
    texts: Texts
    cost: Cost

    @property
    def dimensions(self) -> int | None:
        """Of its vectors, if it makes any."""

    def rows(self, request: wire.Request) -> list[Row]:
        """What has to go through the model for this request. Raises `EngineError`."""

    def run(self, rows: Sequence[Row]) -> Sequence[Any]:
        """One forward pass; one result for each row."""

    def outputs(self, request: wire.Request, results: Sequence[Any]) -> Iterable[wire.Output]:
        """What the client gets of the results of all its rows. Raises `EngineError`."""


Load = Callable[[wire.EngineSpec, Report], Model]
"""Raises `LoadError`."""


class VectorEngine(Plain):
    """Implements `engines.base.Engine`. Before `load`, and after `close`, it holds nothing."""

    def __init__(
        self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit, load: Load, mlx: Mlx = mx
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._load = load
        self._memory = DeviceMemory(mlx, limits)
        self._turn = PrefillTurn(emit)
        self._pace = Pace(spec.step_target_s)
        self._model: Model | None = None
        self._calls: dict[int, Pending[Any]] = {}
        self._requests: dict[int, wire.Request] = {}
        self._stalled = False

    # --- loading --------------------------------------------------------------------------------

    def load(self, report: Report) -> wire.Ready:
        """Loads the model, reporting each stage before it starts. Raises `LoadError`."""
        try:
            self._memory.before_load()
            model = self._memory.construct(lambda: self._load(self._spec, report))
        except BaseException:
            # Nobody closes an engine that was never ready, and `report` may ask it to stop.
            self._memory.leave_thread()
            raise
        self._model = model
        self._fit()
        return wire.Ready(
            model.texts.max_tokens,
            self.memory(),
            dict(self._memory.applied),
            dimensions=model.dimensions,
        )

    def _fit(self) -> None:
        """A row that does not fit into the memory of a batch is longer than the model takes."""
        model, nbytes = self._loaded(), self._memory.limits.kv_bytes
        most = model.texts.max_tokens
        fits = model.cost.longest(most, nbytes) if nbytes else most
        if fits < most:
            model.texts.max_tokens = fits
            _log.warning(
                "this model takes texts of %d tokens, but %d MiB hold no more than %d: raise"
                " kv_memory_gb, which is what one batch may take",
                most, nbytes >> 20, fits,
            )  # fmt: skip

    # --- calls ----------------------------------------------------------------------------------

    def submit(self, request: wire.Request) -> None:
        """Takes a call in. Raises `EngineError`, taking nothing."""
        rows = self._loaded().rows(request)
        if not rows:
            raise EngineError("invalid_request", "there is no text in the request")
        self._calls[request.id] = Pending(request.id, rows, monotonic())
        self._requests[request.id] = request
        self._stalled = False

    def cancel(self, call_id: int) -> None:
        """Ends a call with `Failed(code="cancelled")`; an unknown id is not an error."""
        if call_id in self._calls:
            self._fail(call_id, EngineError("cancelled", "the call was cancelled"))

    def answer(self, question: wire.Ask) -> wire.Answer:
        """Answers a small question from the tokenizer. Raises `EngineError`."""
        texts = self._loaded().texts
        return texts.answer(question, texts.max_tokens)

    def take_turn(self) -> None:
        self._turn.take()
        self._stalled = False

    def step(self) -> None:
        """One batch. What a model raises ends the calls of that batch only."""
        batch = self._next()
        if not batch:
            self._stalled = bool(self._calls)
            return
        now = monotonic()
        for call, _ in batch:
            self._start(call, now)
        try:
            results = self._loaded().run([row for _, row in batch])
        except Exception as error:  # noqa: BLE001  whatever a model raises ends its calls only
            failure = EngineError("engine_error", f"{type(error).__name__}: {error}")
            for call_id in {call.id for call, _ in batch}:
                self._fail(call_id, failure)
            return
        finally:
            # A short one did not need it; what it was asked for has shrunk or gone meanwhile.
            if self._turn.holder is not None:
                self._turn.over(_WORK)
        self._pace.took(padded(batch), monotonic() - now)
        for (call, row), result in zip(batch, results, strict=True):
            call.set(row, result)
        for call in {call.id: call for call, _ in batch}.values():
            self._advance(call)

    def _next(self) -> Batch[Any]:
        """The rows of the next batch; none while all that is left waits for the turn."""
        calls = list(self._calls.values())
        batch = take_batch(calls, self._room(self._pace.tokens))
        if self._turn.ready(_WORK, padded(batch)):
            return batch
        for call, row in batch:
            call.give_back(row)
        small = [call for call in calls if call.left_tokens < LONG // 2]
        # Rows are at least half as long as the longest, so padding at most doubles them.
        return take_batch(small, self._room(LONG - 1))

    def _room(self, tokens: int) -> Room:
        nbytes = self._memory.limits.kv_bytes or 2**62
        return Room(tokens, nbytes, self._loaded().cost)

    def _start(self, call: Pending[Any], now: float) -> None:
        if call.started_at is None:
            call.started_at = now
            self._emit(wire.Started(call.id, call.tokens))

    def _advance(self, call: Pending[Any]) -> None:
        """After a batch with rows of this call: on to the next one in turn, or to its end."""
        request = self._requests[call.id]
        if not call.done:
            # The others lead a batch before this one does again.
            self._calls[call.id] = self._calls.pop(call.id)
            self._emit(wire.PromptProgress(call.id, call.tokens - call.left_tokens, call.tokens))
            return
        try:
            for output in self._loaded().outputs(request, call.results):
                self._emit(output)
        except EngineError as error:
            self._fail(call.id, error)
            return
        self._forget(call.id)
        started = call.started_at or call.submitted_at
        timings = wire.Timings(queue_s=started - call.submitted_at, prefill_s=monotonic() - started)
        self._emit(wire.Finished(call.id, wire.Usage(call.tokens, 0), timings))

    def _fail(self, call_id: int, error: EngineError) -> None:
        self._forget(call_id)
        self._emit(wire.Failed(call_id, error.code, str(error), error.retryable))

    def _forget(self, call_id: int) -> None:
        del self._calls[call_id], self._requests[call_id]
        self._stalled = False
        if not self._calls:
            self._turn.over(_WORK)

    # --- the rest of the contract ---------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do: not while every call waits for the turn."""
        return bool(self._calls) and not self._stalled

    @property
    def running(self) -> int:
        return sum(call.started_at is not None for call in self._calls.values())

    @property
    def waiting(self) -> int:
        return len(self._calls) - self.running

    def idle(self) -> None:
        """Gives freed buffers back to the system."""
        self._memory.give_back()

    def set_limits(self, limits: wire.Limits) -> None:
        """Applies new byte limits at once; the next batch keeps within them."""
        if self._model is None:
            self._memory.limits = limits
        else:
            self._memory.change(limits)

    def memory(self) -> wire.Memory:
        """Bytes by class; what lives for one batch is in no class."""
        return wire.Memory(
            weights_bytes=0 if self._model is None else self._model.weights_bytes,
            mlx_cache_bytes=self._memory.cached_bytes,
        )

    def close(self) -> None:
        """Drops calls and model without an event; it also ends the thread's use of MLX."""
        self._calls.clear()
        self._requests.clear()
        self._model = None
        self._memory.leave_thread()

    def _loaded(self) -> Model:
        if self._model is None:
            raise RuntimeError("the model is not loaded")
        return self._model
