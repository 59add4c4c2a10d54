"""The calls of one text model: waiting, running as rows of one generator, over.

The work thread owns everything here; the waiting calls and the rows are changed nowhere else. Rows
join and leave between any two steps. A step is one decode step for every row and at most one
prefill chunk for each of the few rows in prefill, sized by `StepSizer`.

Calls start in their order, but for those whose long prompt waits for its turn among the engines:
others pass them. A call that has no room holds up all behind it, so that none waits for ever.

The choices of one call share one prefill: the first fills the cache, and its siblings join with
copies of that as room allows. Copies share their buffers until they are written to.

Invariants: a call ends with exactly one `Finished` or `Failed`; a generator that raised is never
stepped again, because its caches have moved on and its tokens have not.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines import wire
from engines.base import Emit, EngineError
from engines.text.calls import Call, Row
from engines.text.disk_cache import DiskCache
from engines.text.generator import PREFILL_ROWS, build_generator, rows_of
from engines.text.limits import DeviceMemory
from engines.text.logprobs import Drawn, drawn
from engines.text.model import LoadedModel
from engines.text.pacing import StepSizer
from engines.text.prompt_cache import Layers
from engines.text.segments import always_trimmable, cut
from engines.text.tiers import PromptTiers
from engines.text.warming import Warming
from engines.turns import LONG, PrefillTurn

_log = logging.getLogger(__name__)


class _Sibling(NamedTuple):
    """A choice whose prompt another row has filled in: `layers` hold the first `cached` tokens."""

    row: Row
    layers: Layers | None
    cached: int


class Batch:
    """Runs calls on one loaded model and emits their events."""

    def __init__(
        self,
        loaded: LoadedModel,
        sizer: StepSizer,
        memory: DeviceMemory,
        emit: Emit,
        disk: DiskCache | None = None,
    ) -> None:
        self._loaded = loaded
        self._sizer = sizer
        self._turn = PrefillTurn(emit)
        self._stalled = False
        self._memory = memory
        self._emit = emit
        self._max_rows = rows_of(loaded)
        self._waiting: deque[Call] = deque()
        self._running: dict[int, Call] = {}
        self._siblings: deque[_Sibling] = deque()
        self._rows: dict[int, Row] = {}
        self._prompts = PromptTiers(memory.limits.prompt_cache_bytes, _evaluate, disk)
        self._warming = Warming(self._prompts, self._turn)
        self.segmented = not always_trimmable(make_prompt_cache(loaded.model))
        """Prompts are worth cutting at their boundaries, as caches cannot be cut back to them."""
        self._build = partial(build_generator, loaded, sizer.most)
        self._generator = memory.construct(self._build)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do: not while every call waits for the turn."""
        if self._running or self._waiting:
            return not self._stalled
        return self._warming.busy

    @property
    def kv_bytes(self) -> int:
        """Key-value caches of the running rows, padding included, and of prompts to be shared."""
        shared = {id(sibling.layers): sibling.layers or () for sibling in self._siblings}
        waiting = sum(int(layer.nbytes) for layers in shared.values() for layer in layers)
        return int(self._generator.prompt_cache_nbytes) + waiting

    @property
    def prompts(self) -> PromptTiers:
        return self._prompts

    def warm(self, tokens: list[int]) -> None:
        """Takes a prompt into the cache once no call wants the model. Raises `EngineError`."""
        self._warming.add(tokens)

    def add(self, call: Call) -> None:
        self._warming.pause(self._generator)
        self._waiting.append(call)
        self._stalled = False

    def take_turn(self) -> None:
        """The call that waits for the turn may start."""
        self._turn.take()
        self._warming.take_turn()
        self._stalled = False

    def cancel(self, call_id: int) -> None:
        """Ends a call at once; what it computed is kept for a later prompt."""
        self._stalled = False
        for call in self._waiting:
            if call.id == call_id:
                self._waiting.remove(call)
                self._fail(call, "cancelled", "cancelled before it started")
                return
        if call_id in self._running:
            call = self._running[call_id]
            tokens = sum(row.generated for row in call.rows)
            self._fail(call, "cancelled", f"cancelled after {tokens} tokens")
            rows = [uid for uid, row in self._rows.items() if row.call is call]
            prefilling = any(self._rows[uid].prefilling for uid in rows)
            self._take_out(rows)
            if prefilling:
                self._memory.give_back()

    def step(self) -> None:
        """One step of the generator, after letting in the rows that there is room for."""
        while self._siblings and self._admits(self._siblings[0].row):
            self._join(self._siblings.popleft())
        while not self._siblings and (call := self._next()) is not None:
            self._waiting.remove(call)
            self._start(call)
        if not self._rows:
            self._stalled = bool(self._waiting)
            if not self._waiting:
                self._warm()
            return
        try:
            prompts, tokens = self._timed_step()
            logprobs = self._logprobs(tokens)
        except Exception as error:  # noqa: BLE001  whatever a model raises ends its calls only
            self._recover(error)
            return
        for response in prompts:
            self._on_prompt(response)
        over = {r.uid for r in tokens if self._on_token(r, logprobs.get(r.uid))}
        over.update(uid for uid, row in self._rows.items() if row.call.failed)
        if over:
            self._take_out(sorted(over))
        self._prompts.between_steps()

    def close(self) -> None:
        """Drops calls, generator and caches, without an event."""
        self._waiting.clear()
        self._running.clear()
        self._siblings.clear()
        self._rows.clear()
        self._warming.clear()
        self._generator.close()
        self._prompts.close()

    def _warm(self) -> None:
        """One chunk of a prompt that is to be in the cache, as there are no calls."""
        self._generator.prefill_step_size = self._sizer.size(1)
        try:
            self._warming.step(self._generator)
        except Exception as error:  # noqa: BLE001  whatever a model raises ends this prompt only
            self._recover(error)

    def _timed_step(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """One step, from whose time the size of the next chunk follows."""
        prefilling = sum(row.prefilling for row in self._rows.values())
        self._generator.prefill_step_size = self._sizer.size(prefilling)
        began = monotonic()
        prompts, tokens = self._generator.next()
        seconds = monotonic() - began
        fed = [self._fed(response) for response in prompts if not response.end_of_prompt]
        if fed:
            self._sizer.took_in(max(fed) * len(fed), seconds, decoding=bool(tokens))
        elif tokens and not prefilling:
            self._sizer.decoded(seconds)
        return prompts, tokens

    def _fed(self, response: Any) -> int:
        """Tokens of one prompt that the last step took in."""
        row, done = self._rows[response.uid], response.progress[0]
        row.fed, before = done, row.fed
        return int(done - before)

    # --- joining ------------------------------------------------------------------------------

    def _next(self) -> Call | None:
        """The call that starts now, if any does."""
        for call in self._waiting:
            if not self._admits(call.rows[0]):
                return None
            if self._turn.ready(call.id, self._uncached(call)):
                return call
        return None

    def _uncached(self, call: Call) -> int:
        """Tokens that are left to prefill, as of when it could first start."""
        if call.uncached is None:
            call.uncached = len(call.prompt)
            if call.uncached >= LONG:
                call.uncached -= self._prompts.usable(call.prompt)
        return call.uncached

    def _admits(self, row: Row) -> bool:
        rows = self._rows.values()
        if len(rows) >= self._max_rows or sum(row.prefilling for row in rows) >= PREFILL_ROWS:
            return False
        kv_limit = self._memory.limits.kv_bytes
        if not rows or not kv_limit:
            return True
        longest = max(row.expected_length, *(other.expected_length for other in rows))
        return self._loaded.kv.batch(len(rows) + 1, longest) <= kv_limit

    def _start(self, call: Call) -> None:
        layers, call.cached = self._prompts.fetch(call.prompt)
        call.started_at = monotonic()
        call.unfinished = len(call.rows)
        self._running[call.id] = call
        self._emit(wire.Started(call.id, len(call.prompt), call.cached))
        if call.cached == len(call.prompt) - 1:  # nothing is left to prefill
            self._siblings.extend(_Sibling(row, layers, call.cached) for row in call.rows[1:])
        self._insert(call.rows[0], layers, call.cached)

    def _join(self, sibling: _Sibling) -> None:
        self._insert(sibling.row, sibling.layers, sibling.cached)

    def _insert(self, row: Row, layers: Layers | None, cached: int) -> None:
        shared = len(row.call.rows) > 1
        prompt = row.call.prompt
        places = (place - cached for place in row.call.boundaries)
        (uid,) = self._generator.insert_segments(
            [cut(prompt[cached:], places)],
            max_tokens=[row.call.max_tokens],
            caches=[copy.deepcopy(layers) if shared else layers],
            all_tokens=[prompt[:cached]],
            samplers=[row.sampler],
            logits_processors=[row.processors],
        )
        self._rows[uid] = row

    def _on_prompt(self, response: Any) -> None:
        row = self._rows[response.uid]
        row.prefilling = not response.end_of_prompt
        call = row.call
        if row is not call.rows[0]:
            return
        done, total = response.progress
        if done >= total - 1:
            self._turn.over(call.id)
        self._emit(wire.PromptProgress(call.id, call.cached + done, len(call.prompt)))
        if call.cached + done in call.boundaries:
            layers, tokens = self._generator.extract_cache([response.uid])[response.uid]
            self._prompts.store(tokens, layers)
        if len(call.rows) > 1 and done == total - 1:
            layers, tokens = self._generator.extract_cache([response.uid])[response.uid]
            _evaluate(layers)
            held = len(tokens)
            self._siblings.extend(_Sibling(sibling, layers, held) for sibling in call.rows[1:])

    # --- tokens -------------------------------------------------------------------------------

    def _logprobs(self, responses: Sequence[Any]) -> dict[int, Drawn]:
        """By row, for the rows that ask for them."""
        asking = [r for r in responses if self._rows[r.uid].call.logprobs is not None]
        if not asking:
            return {}
        most = max(self._rows[response.uid].call.logprobs or 0 for response in asking)
        found = drawn([r.logprobs for r in asking], [r.token for r in asking], most)
        return {response.uid: of_row for response, of_row in zip(asking, found, strict=True)}

    def _on_token(self, response: Any, logprob: Drawn | None) -> bool:
        """Shows a token; True when the choice is over and its row must be taken out."""
        row, reason = self._rows[response.uid], response.finish_reason
        if not row.call.failed:
            self._show(row, response.token, reason, logprob)
        if reason is not None:
            del self._rows[response.uid]
            self._prompts.store(response.all_tokens, response.prompt_cache)
            return False
        return row.answer.over

    def _show(self, row: Row, token: int, reason: str | None, logprob: Drawn | None) -> None:
        call = row.call
        try:
            ended = row.tell(token, lambda: logprob, reason, self._emit)
        except EngineError as error:
            self._fail(call, error.code, str(error))
            return
        if ended and call.unfinished == 0:
            del self._running[call.id]
            self._emit(call.finished(monotonic()))

    def _take_out(self, uids: list[int]) -> None:
        removed = self._generator.remove(uids, return_prompt_caches=True)
        for layers, tokens in removed.values():
            self._prompts.store(tokens, layers)
        for uid in uids:
            del self._rows[uid]

    # --- failing ------------------------------------------------------------------------------

    def _fail(self, call: Call, code: wire.FailureCode, message: str) -> None:
        """The end of a call; its rows are still to be taken out."""
        call.failed = True
        self._turn.over(call.id)
        self._siblings = deque(kept for kept in self._siblings if kept.row.call is not call)
        self._running.pop(call.id, None)
        self._emit(wire.Failed(call.id, code, message, retryable=code == "engine_error"))

    def _recover(self, error: Exception) -> None:
        """Puts a new generator in place of one that raised; its calls are lost."""
        _log.exception("a step of the model failed; %d calls are lost", len(self._running))
        lost = list(self._running.values())
        self._running.clear()
        self._rows.clear()
        self._warming.lost()
        self._generator.close()
        self._generator = self._memory.construct(self._build)
        self._memory.give_back()
        for call in lost:
            self._fail(call, "engine_error", f"the model failed: {type(error).__name__}: {error}")


def _evaluate(layers: Layers) -> None:
    mx.eval([layer.state for layer in layers])
