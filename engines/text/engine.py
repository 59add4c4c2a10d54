"""The text engine on mlx-lm: requests in, text and tool calls out, in one running batch.

Owned and driven by the work thread, like everything of this package.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import monotonic

import mlx.core as mx
import msgspec

from engines import wire
from engines.answer import Answer
from engines.base import Emit, EngineError, Plain, Report, check_request, refuse_kind
from engines.text.batch import Batch
from engines.text.calls import Call, Row
from engines.text.limits import DeviceMemory, Mlx
from engines.text.model import LoadedModel, load
from engines.text.parsing import Parsing
from engines.text.processors import check_sampling, processors_for
from engines.text.sampling import sampler_for
from engines.text.vocabulary import Vocabulary, check_token_ids

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
        batch = Batch(loaded, self._spec.prefill_step_size, self._memory, self._emit)
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
            return serving.batch.prompts.cleared(question.id)
        return serving.vocabulary.answer(question, serving.context_length)

    def cancel(self, call_id: int) -> None:
        """Ends a call with `Failed(code="cancelled")`; an unknown id is not an error."""
        if self._serving is not None:
            self._serving.batch.cancel(call_id)

    def step(self) -> None:
        """One decode step for all rows and at most one prefill chunk for those in prefill."""
        self._now_serving().batch.step()

    @property
    def busy(self) -> bool:
        return self.running + self.waiting > 0

    @property
    def running(self) -> int:
        return 0 if self._serving is None else self._serving.batch.running

    @property
    def waiting(self) -> int:
        return 0 if self._serving is None else self._serving.batch.waiting

    def idle(self) -> None:
        """Gives freed buffers back to the system."""
        self._memory.give_back()

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
        self.vocabulary = Vocabulary(loaded.tokenizer)
        self._memory = memory
        self._parsing = Parsing(loaded.tokenizer, self.vocabulary)

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together: what the model takes and the KV limit holds."""
        kv_bytes, most = self._memory.limits.kv_bytes, self.loaded.context_length
        return self.loaded.kv.context(kv_bytes, most) if kv_bytes else most

    def submit(self, request: wire.Generate) -> None:
        check_request(request)
        check_sampling(request.sampling, self.loaded.vocabulary_size)
        prompt = self._prompt(request)
        call = Call(
            id=request.id,
            prompt=prompt,
            max_tokens=self._room(len(prompt), request.max_tokens),
            logprobs=request.logprobs,
            spell=self.vocabulary.spell,
            special=self.vocabulary.special.get,
            submitted_at=monotonic(),
        )
        call.rows.extend(self._choices(request, call))
        self.batch.add(call)

    def _choices(self, request: wire.Generate, call: Call) -> Iterator[Row]:
        pipelines = self._parsing.pipelines(request, call.prompt)
        budgets = self._parsing.budgets(request, call.prompt)
        for choice, pipeline in enumerate(pipelines):
            sampling = request.sampling
            if choice and sampling.seed is not None:
                sampling = msgspec.structs.replace(sampling, seed=sampling.seed + choice)
            yield Row(
                call=call,
                sampler=sampler_for(sampling),
                processors=[*processors_for(sampling), *budgets[choice : choice + 1]],
                detokenizer=self.vocabulary.detokenizers(),
                answer=Answer(
                    call.id,
                    choice,
                    pipeline,
                    parallel=request.tool_choice.parallel,
                    logprobs=request.logprobs is not None,
                ),
            )

    def _prompt(self, request: wire.Generate) -> list[int]:
        if request.token_ids is not None:
            if not request.token_ids:
                raise EngineError("invalid_request", "the prompt is empty")
            check_token_ids(request.token_ids, self.loaded.vocabulary_size, "prompt: token id")
            return list(request.token_ids)
        if request.prompt is not None:
            return self.vocabulary.text_prompt(request.prompt)
        return self.vocabulary.chat_prompt(request)

    def _room(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """Tokens the call may generate. Raises `EngineError` when the context cannot hold them."""
        context = self.context_length
        if max_tokens is not None and max_tokens < 1:
            raise EngineError(
                "invalid_request", f"max_tokens is {max_tokens}; it must be 1 or more"
            )
        if prompt_tokens + (max_tokens or 1) > context:
            answer = "" if max_tokens is None else f" and max_tokens is {max_tokens}"
            raise EngineError(
                "context_length_exceeded",
                f"the context length is {context} tokens, but the prompt has {prompt_tokens}"
                f"{answer}, {prompt_tokens + (max_tokens or 1)} in all",
            )
        return context - prompt_tokens if max_tokens is None else max_tokens
