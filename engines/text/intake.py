"""From a request to a call: its limits checked, its prompt's tokens, one row for each choice.

What a text model and a vision model do alike, whatever their batches are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from engines import wire
from engines.answer import Answer
from engines.base import EngineError, check_request
from engines.text.calls import Call, Row
from engines.text.constrain import Constrainer
from engines.text.parsing import Parsing
from engines.text.processors import check_sampling, processors_for
from engines.text.sampling import sampler_for
from engines.text.vocabulary import Vocabulary, check_token_ids


class Intake:
    """Makes the calls of one model; `vocabulary_size` is how many tokens it has logits for."""

    def __init__(self, tokenizer: Any, vocabulary_size: int) -> None:
        self.vocabulary = Vocabulary(tokenizer)
        self._vocabulary_size = vocabulary_size
        self._parsing = Parsing(tokenizer, self.vocabulary)
        self._constrainer = Constrainer(tokenizer, vocabulary_size, self.vocabulary, self._parsing)

    def prepare(self) -> None:
        """Builds what the first request that needs a grammar would have to wait for."""
        self._constrainer.prepare()

    def check(self, request: wire.Generate) -> None:
        """Raises `EngineError` for what no prompt could make right."""
        check_request(request, constrains=True)
        check_sampling(request.sampling, self._vocabulary_size)

    def prompt(self, request: wire.Generate) -> list[int]:
        """The tokens of a prompt without media. Raises `EngineError`."""
        if request.token_ids is not None:
            if not request.token_ids:
                raise EngineError("invalid_request", "the prompt is empty")
            check_token_ids(request.token_ids, self._vocabulary_size, "prompt: token id")
            return list(request.token_ids)
        if request.prompt is not None:
            return self.vocabulary.text_prompt(request.prompt)
        return self.vocabulary.chat_prompt(request)

    def call(
        self, request: wire.Generate, prompt: list[int], context: int, submitted_at: float
    ) -> Call:
        """A call with its rows. `context` is how many tokens prompt and answer may have together.

        Raises `EngineError` when the context cannot hold them.
        """
        call = Call(
            id=request.id,
            prompt=prompt,
            max_tokens=_room(context, len(prompt), request.max_tokens),
            logprobs=request.logprobs,
            spell=self.vocabulary.spell,
            special=self.vocabulary.special.get,
            submitted_at=submitted_at,
        )
        call.rows.extend(self._choices(request, call))
        return call

    def _choices(self, request: wire.Generate, call: Call) -> Iterator[Row]:
        pipelines = self._parsing.pipelines(request, call.prompt)
        budgets = self._parsing.budgets(request, call.prompt)
        constraints = self._constrainer.constraints(request, call.prompt)
        for choice, pipeline in enumerate(pipelines):
            sampling = request.sampling
            if choice and sampling.seed is not None:
                sampling = msgspec.structs.replace(sampling, seed=sampling.seed + choice)
            yield Row(
                call=call,
                sampler=sampler_for(sampling),
                processors=[
                    *processors_for(sampling),
                    *constraints[choice : choice + 1],
                    *budgets[choice : choice + 1],
                ],
                constraint=next(iter(constraints[choice : choice + 1]), None),
                detokenizer=self.vocabulary.detokenizers(),
                answer=Answer(
                    call.id,
                    choice,
                    pipeline,
                    parallel=request.tool_choice.parallel,
                    logprobs=request.logprobs is not None,
                ),
            )


def _room(context: int, prompt_tokens: int, max_tokens: int | None) -> int:
    """Tokens a call may generate. Raises `EngineError` when the context cannot hold them."""
    if max_tokens is not None and max_tokens < 1:
        raise EngineError("invalid_request", f"max_tokens is {max_tokens}; it must be 1 or more")
    if prompt_tokens + (max_tokens or 1) > context:
        answer = "" if max_tokens is None else f" and max_tokens is {max_tokens}"
        raise EngineError(
            "context_length_exceeded",
            f"the context length is {context} tokens, but the prompt has {prompt_tokens}"
            f"{answer}, {prompt_tokens + (max_tokens or 1)} in all",
        )
    return context - prompt_tokens if max_tokens is None else max_tokens
