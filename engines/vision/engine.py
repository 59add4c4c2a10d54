"""The vision engine on mlx-vlm: chats with images, videos and sounds in, text and tool calls out.

Owned and driven by the work thread, like everything of this package. No key-value cache of a prompt
is kept for a later one, so all of the prompt cache's share is for the features of images.
"""

from __future__ import annotations

import logging
from time import monotonic

import mlx.core as mx

from engines import wire
from engines.base import Emit, EngineError, Plain, Report, refuse_kind
from engines.text.intake import Intake
from engines.text.limits import DeviceMemory, Mlx
from engines.vision.batch import Asked, Batch, Ready
from engines.vision.features import FeatureCache
from engines.vision.inputs import Inputs, Prepared
from engines.vision.model import LoadedVision, load

_log = logging.getLogger(__name__)

STEP_TOKENS = 512
"""Tokens in one chunk of a prefill where the entry names no other number."""


class VisionEngine(Plain):
    """Implements `engines.base.Engine`. Before `load`, and after `close`, it holds nothing."""

    def __init__(
        self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit, mlx: Mlx = mx
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._memory = DeviceMemory(mlx, limits)
        self._features = FeatureCache(limits.prompt_cache_bytes)
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
        loaded = load(self._spec, self._features, report)
        if not loaded.batchable:
            _log.warning("models of the kind %r answer one call at a time", loaded.kind)
        step_tokens = self._spec.prefill_step_size or STEP_TOKENS
        self._serving = _Serving(loaded, step_tokens, self._memory, self._emit)
        applied = dict(self._memory.applied)
        if loaded.cast_bytes:
            applied["float16_cast_to_float32"] = loaded.cast_bytes
        return wire.Ready(
            self._serving.context_length, self.memory(), applied, modalities=loaded.modalities
        )

    def submit(self, request: wire.Request) -> None:
        """Takes a call in. Raises `EngineError`, taking nothing.

        What only its media tell, such as a prompt that is too long, is told from `step`.
        """
        if not isinstance(request, wire.Generate):
            raise refuse_kind(request, "chats with images")
        serving = self._now_serving()
        serving.intake.check(request)
        serving.batch.add(Asked(request, monotonic()))

    def answer(self, question: wire.Ask) -> wire.Answer:
        """Answers a small question, media included. Raises `EngineError`."""
        serving = self._now_serving()
        if isinstance(question, wire.ClearCache):
            # Features are of images and begin with no text.
            gone = self._features.clear() if question.prefix is None else (0, 0)
            return wire.Cleared(question.id, *gone)
        if isinstance(question, wire.Warm):
            raise EngineError("unsupported", "vision models keep no prompts, so none is warmed")
        if isinstance(question, wire.CountTokens) and question.media:
            tokens = serving.inputs.prepare(question).tokens
            if question.listed:
                return wire.Tokenized(question.id, tokens, serving.context_length)
            return wire.Counted(question.id, len(tokens))
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
        """One stage of the foremost call that waits, and one token for all rows."""
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

    def set_limits(self, limits: wire.Limits) -> None:
        """Applies new byte limits at once; running calls go on."""
        self._features.set_limit(limits.prompt_cache_bytes)
        if self._serving is None:
            self._memory.limits = limits
        else:
            self._memory.change(limits)

    def memory(self) -> wire.Memory:
        """Bytes by class. KV is what the running rows may grow to before the next is admitted;
        features of images count as the prompt cache; what lives for one step is in no class."""
        if self._serving is None:
            return wire.Memory(mlx_cache_bytes=self._memory.cached_bytes)
        return wire.Memory(
            weights_bytes=self._serving.loaded.weights_bytes,
            kv_bytes=self._serving.batch.kv_bytes,
            prompt_cache_bytes=self._features.nbytes,
            mlx_cache_bytes=self._memory.cached_bytes,
        )

    def features(self) -> wire.FeatureCacheStats:
        """The feature cache's counters since load."""
        return self._features.stats()

    def close(self) -> None:
        """Drops calls, caches and model without an event; the process ends after it.

        It also ends the work thread's use of MLX.
        """
        if self._serving is not None:
            self._serving.batch.close()
            self._serving = None
        self._features.clear()
        self._memory.leave_thread()

    def _now_serving(self) -> _Serving:
        if self._serving is None:
            raise RuntimeError("the model is not loaded")
        return self._serving


class _Serving:
    """A loaded model and its calls."""

    def __init__(
        self, loaded: LoadedVision, step_tokens: int, memory: DeviceMemory, emit: Emit
    ) -> None:
        self.loaded = loaded
        self.intake = Intake(loaded.tokenizer, loaded.vocabulary_size)
        self.inputs = Inputs(loaded)
        self.batch = Batch(loaded, step_tokens, memory, self._prepare, emit)
        self._memory = memory

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together: what the model takes and the KV limit holds."""
        kv_bytes, most = self._memory.limits.kv_bytes, self.loaded.context_length
        return self.loaded.kv.context(kv_bytes, most) if kv_bytes else most

    def _prepare(self, asked: Asked) -> Ready:
        request = asked.request
        if request.media:
            prepared = self.inputs.prepare(request)
        else:
            prepared = Prepared(self.intake.prompt(request))
        if not prepared.tokens:
            raise EngineError("invalid_request", "the messages give an empty prompt")
        call = self.intake.call(request, prepared.tokens, self.context_length, asked.submitted_at)
        return Ready(call, prepared)
