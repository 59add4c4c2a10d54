"""The text engine on mlx-lm: requests in, text and tool calls out, in one running batch.

Owned and driven by the work thread, like everything of this package.
"""

from __future__ import annotations

import logging
from time import monotonic

import mlx.core as mx

from engines import wire
from engines.base import Emit, Plain, Report, refuse_kind
from engines.text.batch import Batch
from engines.text.intake import Intake
from engines.text.keeping import cleared, open_disk, places, warm_prompt
from engines.text.limits import DeviceMemory, Mlx
from engines.text.model import LoadedModel, load
from engines.text.pacing import StepSizer

_log = logging.getLogger(__name__)


class TextEngine(Plain):
    """Implements `engines.base.Engine`. Before `load`, and after `close`, it holds nothing."""

    def __init__(
        self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit, mlx: Mlx = mx
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._memory = DeviceMemory(mlx, limits)
        self._serving: _Serving | None = None

    def load(self, report: Report) -> wire.Ready:
        """Loads the model, reporting each stage before it starts. Raises `LoadError`."""
        try:
            return self._load(report)
        except BaseException:
            # Nobody closes an engine that was never ready, and `report` may ask it to stop.
            self._memory.leave_thread()
            raise

    def _load(self, report: Report) -> wire.Ready:
        self._memory.before_load()
        loaded = load(self._spec, report)
        if not loaded.batchable:
            _log.warning("the caches of this model cannot be batched: one call runs at a time")
        sizer = StepSizer(self._spec.step_target_s, self._spec.prefill_step_size)
        disk = open_disk(self._spec.disk_cache)
        batch = Batch(loaded, sizer, self._memory, self._emit, disk)
        self._serving = _Serving(loaded, batch, self._memory)
        applied = dict(self._memory.applied)
        if loaded.cast_bytes:
            applied["float16_cast_to_float32"] = loaded.cast_bytes
        return wire.Ready(self._serving.context_length, self.memory(), applied)

    def submit(self, request: wire.Request) -> None:
        """Takes a call in. Raises `EngineError`, taking nothing."""
        if not isinstance(request, wire.Generate):
            raise refuse_kind(request, "text")
        self._now_serving().submit(request)

    def answer(self, question: wire.Ask) -> wire.Answer:
        """Answers a small question from the tokenizer. Raises `EngineError`."""
        serving = self._now_serving()
        if isinstance(question, wire.ClearCache):
            return cleared(serving.intake.vocabulary, serving.batch.prompts, question)
        if isinstance(question, wire.Warm):
            return serving.warm(question)
        return serving.intake.vocabulary.answer(question, serving.context_length)

    def take_turn(self) -> None:
        """The call whose long prompt waits for it may start."""
        if self._serving is not None:
            self._serving.batch.take_turn()

    def cancel(self, call_id: int) -> None:
        """Ends a call with `Failed(code="cancelled")`; an unknown id is not an error."""
        if self._serving is not None:
            self._serving.batch.cancel(call_id)

    def step(self) -> None:
        """One decode step for all rows and at most one prefill chunk for those in prefill."""
        self._now_serving().batch.step()

    @property
    def busy(self) -> bool:
        return self._serving is not None and self._serving.batch.busy

    @property
    def running(self) -> int:
        return 0 if self._serving is None else self._serving.batch.running

    @property
    def waiting(self) -> int:
        return 0 if self._serving is None else self._serving.batch.waiting

    def idle(self) -> None:
        """Gives freed buffers back to the system, and gets ready for grammars."""
        self._memory.give_back()
        if self._serving is not None:
            self._serving.intake.prepare()

    def background(self) -> float | None:
        """Writes a little of the prompt cache to disk, where that is wanted."""
        return None if self._serving is None else self._serving.batch.prompts.background()

    def set_limits(self, limits: wire.Limits) -> None:
        """Applies new byte limits at once; running calls go on."""
        if self._serving is None:
            self._memory.limits = limits
            return
        self._serving.batch.prompts.set_limit(limits.prompt_cache_bytes)
        self._memory.change(limits)

    def memory(self) -> wire.Memory:
        """Bytes by class. Weights are the exact size of the parameters; KV counts the running rows
        with their padding; what lives for one step, such as activations, is in no class."""
        if self._serving is None:
            return wire.Memory(mlx_cache_bytes=self._memory.cached_bytes)
        return wire.Memory(
            weights_bytes=self._serving.loaded.weights_bytes,
            kv_bytes=self._serving.batch.kv_bytes,
            prompt_cache_bytes=self._serving.batch.prompts.nbytes,
            mlx_cache_bytes=self._memory.cached_bytes,
        )

    def prompt_cache(self) -> wire.PromptCacheStats:
        """The prompt cache's counters since load."""
        if self._serving is None:
            return wire.PromptCacheStats()
        return self._serving.batch.prompts.stats()

    def close(self) -> None:
        """Drops calls, caches and model without an event; the process ends after it.

        It also ends the work thread's use of MLX.
        """
        if self._serving is not None:
            self._serving.batch.close()
            self._serving = None
        self._memory.leave_thread()

    def _now_serving(self) -> _Serving:
        if self._serving is None:
            raise RuntimeError("the model is not loaded")
        return self._serving


class _Serving:
    """A loaded model and its calls."""

    def __init__(self, loaded: LoadedModel, batch: Batch, memory: DeviceMemory) -> None:
        self.loaded = loaded
        self.batch = batch
        self.intake = Intake(loaded.tokenizer, loaded.vocabulary_size)
        self._memory = memory

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together: what the model takes and the KV limit holds."""
        kv_bytes, most = self._memory.limits.kv_bytes, self.loaded.context_length
        return self.loaded.kv.context(kv_bytes, most) if kv_bytes else most

    def submit(self, request: wire.Generate) -> None:
        self.intake.check(request)
        prompt = self.intake.prompt(request)
        call = self.intake.call(request, prompt, self.context_length, monotonic())
        if self.batch.segmented:
            call.boundaries = places(self.intake.vocabulary, request, prompt)
        self.batch.add(call)

    def warm(self, question: wire.Warm) -> wire.Counted:
        tokens = warm_prompt(self.intake.vocabulary, question, self.context_length)
        self.batch.warm(tokens)
        return wire.Counted(question.id, len(tokens))
