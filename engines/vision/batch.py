"""The calls of one vision model: waiting, running as rows of mlx-vlm's generator, over.

The work thread owns everything here. A step brings the foremost call one stage on (decode its
media; make its embeddings and insert a row), then advances the generator: one decode step for every
row and at most one prefill chunk. One row is in prefill at a time, so no prompt is ever padded, and
the positions of images are those that the model itself works out for a prompt on its own.

The choices of one call share its embeddings; each has a prefill of its own, because this generator
does not give caches away. Nothing is kept of a prompt but the features of its images.

Invariants: a call ends with exactly one `Finished` or `Failed`; what is wrong with one call's media
ends that call alone; a generator that raised is never stepped again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import monotonic
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from mlx_vlm.generate import BatchGenerator

from engines import wire
from engines.base import Emit, EngineError
from engines.text.calls import Call, Row
from engines.text.limits import DeviceMemory
from engines.turns import PrefillTurn
from engines.vision.draw import Draw
from engines.vision.inputs import Prepared
from engines.vision.model import LoadedVision, embed

_log = logging.getLogger(__name__)

MAX_ROWS = 16
"""Rows in one batch. A model may be granted more calls than that; the rest wait here for a row."""


class Generator(Protocol):
    """What is used of `mlx_vlm.generate.BatchGenerator`."""

    def insert(
        self,
        prompts: Sequence[list[int]],
        max_tokens: Sequence[int],
        *,
        prompt_kwargs: Sequence[dict[str, Any]],
        logits_processors: Sequence[list[Draw]],
    ) -> list[int]: ...
    def next(self) -> tuple[Sequence[Any], Sequence[Any]]: ...
    def remove(self, uid: int) -> bool: ...
    def close(self) -> None: ...


class Asked(NamedTuple):
    """A request that waits; `submitted_at` in seconds of the monotonic clock."""

    request: wire.Generate
    submitted_at: float


class Ready(NamedTuple):
    """A call whose media are decoded, with all that its embeddings are made of."""

    call: Call
    prepared: Prepared


Prepare = Callable[[Asked], Ready]
"""Decodes media and works out tokens, parsers and samplers. Raises `EngineError`."""


class _Joining:
    """The foremost call once it has begun: its embeddings, and the rows that are still to join."""

    def __init__(self, call: Call, embedded: dict[str, Any]) -> None:
        self.call = call
        self.embedded = embedded
        self.rows = deque(call.rows)


class Batch:
    """Runs calls on one loaded model and emits their events."""

    def __init__(
        self,
        loaded: LoadedVision,
        step_size: int,
        memory: DeviceMemory,
        prepare: Prepare,
        emit: Emit,
    ) -> None:
        self._loaded = loaded
        self._step_size = step_size
        self._memory = memory
        self._prepare = prepare
        self._emit = emit
        self._max_rows = MAX_ROWS if loaded.batchable else 1
        self._waiting: deque[Asked] = deque()
        self._ready: Ready | None = None
        self._turn = PrefillTurn(emit)
        self._turn_awaited = False
        self._joining: _Joining | None = None
        self._running: dict[int, Call] = {}
        self._rows: dict[int, Row] = {}
        self._draws: dict[int, Draw] = {}
        self._stops = _Stops(loaded.tokenizer.eos_token_ids)
        self._generator = memory.construct(self._build)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + (self._ready is not None)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything: a call that waits for its turn is no work."""
        if self._rows or self._joining is not None:
            return True
        return not self._turn_awaited if self._ready is not None else bool(self._waiting)

    @property
    def kv_bytes(self) -> int:
        """Key-value caches of the running rows as they were reserved."""
        return self._reserved(()) if self._rows else 0

    def add(self, asked: Asked) -> None:
        self._waiting.append(asked)

    def cancel(self, call_id: int) -> None:
        """Ends a call at once, wherever it is."""
        message = "cancelled before it started"
        if self._ready is not None and self._ready.call.id == call_id:
            self._ready, self._turn_awaited = None, False
            self._turn.over(call_id)
            self._end(call_id, "cancelled", message)
        for asked in self._waiting:
            if asked.request.id == call_id:
                self._waiting.remove(asked)
                self._end(call_id, "cancelled", message)
                return
        if call_id in self._running:
            call = self._running[call_id]
            prefilling = any(row.prefilling for row in self._rows_of(call).values())
            tokens = sum(row.generated for row in call.rows)
            self._fail(call, "cancelled", f"cancelled after {tokens} tokens")
            self._take_out(list(self._rows_of(call)))
            if prefilling:
                self._memory.give_back()

    def take_turn(self) -> None:
        """The call whose long prompt waits for it may start."""
        self._turn.take()
        self._turn_awaited = False

    def step(self) -> None:
        """Brings the foremost call one stage on, then all rows one token."""
        self._let_in()
        if not self._rows:
            return
        try:
            _, tokens = self._generator.next()
        except Exception as error:  # noqa: BLE001  whatever a model raises ends its calls only
            self._recover(error)
            return
        over = {response.uid for response in tokens if self._on_token(response)}
        over.update(uid for uid, row in self._rows.items() if row.call.failed)
        self._take_out(sorted(over))

    def close(self) -> None:
        """Drops calls and generator without an event."""
        self._waiting.clear()
        self._running.clear()
        self._rows.clear()
        self._draws.clear()
        self._ready = self._joining = None
        self._generator.close()

    def _build(self) -> Generator:
        generator: Generator = BatchGenerator(
            self._loaded.model.language_model,
            _Processor(self._stops),
            sampler=_greedy,
            greedy_sampling=True,
            compute_logprobs=False,
            completion_batch_size=self._max_rows,
            prefill_batch_size=1,
            prefill_step_size=self._step_size,
        )
        return generator

    # --- joining ------------------------------------------------------------------------------

    def _let_in(self) -> None:
        """One stage of one call."""
        if self._joining is not None:
            self._join(self._joining)
        elif self._ready is not None:
            call = self._ready.call
            if self._admits(call.rows[0]):
                self._turn_awaited = not self._turn.ready(call.id, len(call.prompt))
                if not self._turn_awaited:
                    ready, self._ready = self._ready, None
                    self._start(ready)
        elif self._waiting:
            asked = self._waiting.popleft()
            try:
                self._ready = self._prepare(asked)
            except EngineError as error:
                self._end(asked.request.id, error.code, str(error), error.retryable)
            except Exception as error:  # noqa: BLE001  one request must not end the others
                _log.exception("call %d cannot be prepared", asked.request.id)
                self._end(asked.request.id, "engine_error", f"{type(error).__name__}: {error}")

    def _admits(self, row: Row) -> bool:
        rows = self._rows.values()
        if len(rows) >= self._max_rows or any(other.prefilling for other in rows):
            return False
        kv_limit = self._memory.limits.kv_bytes
        return not rows or not kv_limit or self._reserved((row,)) <= kv_limit

    def _reserved(self, more: Sequence[Row]) -> int:
        rows = [*self._rows.values(), *more]
        return self._loaded.kv.batch(len(rows), max(row.expected_length for row in rows))

    def _start(self, ready: Ready) -> None:
        call, tower = ready.call, self._loaded.tower
        call.started_at = monotonic()
        call.unfinished = len(call.rows)
        self._running[call.id] = call
        try:
            with tower.naming(ready.prepared.images) if tower is not None else nullcontext():
                embedded = embed(self._loaded.model, call.prompt, ready.prepared.arrays)
        except ValueError as error:  # the models' word for media that do not fit together
            self._fail(call, "invalid_request", f"the model does not take these media: {error}")
            return
        except Exception as error:  # noqa: BLE001  no row has been touched yet
            _log.exception("call %d: its media cannot be embedded", call.id)
            self._fail(call, "engine_error", f"the model failed: {type(error).__name__}: {error}")
            return
        self._emit(wire.Started(call.id, len(call.prompt)))
        self._joining = _Joining(call, embedded)
        self._join(self._joining)

    def _join(self, joining: _Joining) -> None:
        """Inserts the next choice, when there is room for it."""
        if not self._admits(joining.rows[0]):
            return
        row, call = joining.rows.popleft(), joining.call
        draw = Draw(row.processors, row.sampler, call.logprobs)
        (uid,) = self._generator.insert(
            [call.prompt],
            [call.max_tokens],
            prompt_kwargs=[dict(joining.embedded)],
            logits_processors=[[draw]],
        )
        self._rows[uid], self._draws[uid] = row, draw
        if not joining.rows:
            self._joining = None

    # --- tokens -------------------------------------------------------------------------------

    def _on_token(self, response: Any) -> bool:
        """Shows a token; True when the choice is over and its row must be taken out."""
        uid, reason = response.uid, response.finish_reason
        row = self._rows[uid]
        if row.prefilling:
            self._on_prompt(row)
        if not row.call.failed:
            self._show(uid, row, response.token, reason)
        if reason is not None:
            del self._rows[uid], self._draws[uid]
            return False
        return row.answer.over

    def _on_prompt(self, row: Row) -> None:
        """A prompt is in the model; the turn is over with the last choice of its call."""
        row.prefilling = False
        call, total = row.call, len(row.call.prompt)
        if row is call.rows[0]:
            self._emit(wire.PromptProgress(call.id, total, total))
        if not any(other.prefilling for other in call.rows):
            self._turn.over(call.id)

    def _show(self, uid: int, row: Row, token: int, reason: str | None) -> None:
        call = row.call
        try:
            ended = row.tell(token, lambda: self._draws[uid].take(token), reason, self._emit)
        except EngineError as error:
            self._fail(call, error.code, str(error))
            return
        if ended and call.unfinished == 0:
            del self._running[call.id]
            self._emit(call.finished(monotonic()))

    def _rows_of(self, call: Call) -> dict[int, Row]:
        return {uid: row for uid, row in self._rows.items() if row.call is call}

    def _take_out(self, uids: Sequence[int]) -> None:
        for uid in uids:
            self._generator.remove(uid)
            del self._rows[uid], self._draws[uid]

    # --- failing ------------------------------------------------------------------------------

    def _fail(self, call: Call, code: wire.FailureCode, message: str) -> None:
        """The end of a call that runs; its rows are still to be taken out."""
        call.failed = True
        if self._joining is not None and self._joining.call is call:
            self._joining = None
        self._turn.over(call.id)
        self._running.pop(call.id, None)
        self._end(call.id, code, message, retryable=code == "engine_error")

    def _end(
        self, call_id: int, code: wire.FailureCode, message: str, retryable: bool = False
    ) -> None:
        self._emit(wire.Failed(call_id, code, message, retryable))

    def _recover(self, error: Exception) -> None:
        """Puts a new generator in place of one that raised; its calls are lost."""
        _log.exception("a step of the model failed; %d calls are lost", len(self._running))
        lost = list(self._running.values())
        self._rows.clear()
        self._draws.clear()
        self._generator.close()
        self._generator = self._memory.construct(self._build)
        self._memory.give_back()
        for call in lost:
            self._fail(call, "engine_error", f"the model failed: {type(error).__name__}: {error}")


def _greedy(logprobs: Any) -> Any:
    return mx.argmax(logprobs, axis=-1)


class _Stops:
    """The tokens that end a row, as the generator asks for them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = frozenset(tokens)

    def __call__(self, token: int) -> bool:
        return token in self._tokens

    def add_eos_token_ids(self, tokens: object = None) -> None:
        """There are no others than the tokenizer names."""


class _Processor:
    """What the generator wants of a processor: the stop tokens of its tokenizer."""

    def __init__(self, stops: _Stops) -> None:
        self.tokenizer = self
        self.stopping_criteria = stops
