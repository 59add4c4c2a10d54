"""One model's tokenizer as the engine uses it: requests to prompt tokens, tokens to text.

A request is counted by exactly the code that makes its prompt, with or without a model beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines import wire
from engines.answer import tools_offered
from engines.base import EngineError
from engines.text.detokenize import detokenizers
from engines.text.prompt import PromptEncoder

TAIL_TOKENS = 64
"""How much of a prompt's end is looked at for a trace or a header that it opens."""


def template_kwargs(request: wire.Generate | wire.CountTokens) -> dict[str, Any]:
    """What the chat template gets beside the messages; what the request names itself wins."""
    reasoning: dict[str, Any] = {}
    if request.reasoning.enabled is not None:
        reasoning["enable_thinking"] = request.reasoning.enabled
    if request.reasoning.effort is not None:
        reasoning["reasoning_effort"] = request.reasoning.effort
    return reasoning | request.template_kwargs


class Vocabulary:
    """`tokenizer` is an mlx-lm TokenizerWrapper; `special` spells its special tokens by id."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer)
        self.detokenizers = detokenizers(tokenizer)
        self.special: Mapping[int, str] = _special_tokens(tokenizer)

    def chat_prompt(self, request: wire.Generate | wire.CountTokens) -> list[int]:
        """The tokens of the request's messages and tools. Raises `EngineError`."""
        tools = request.tools if tools_offered(request) else []
        return self._encoder.encode(request.messages, template_kwargs(request), tools)

    def text_prompt(self, text: str) -> list[int]:
        """The tokens of a prompt that is plain text. Raises `EngineError` if there are none."""
        tokens = self._encoder.encode_text(text)
        if not tokens:
            raise EngineError("invalid_request", "the prompt is empty")
        return tokens

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """The tokens of messages that need not be a whole request. Raises `EngineError`."""
        return self._encoder.encode(messages, kwargs, tools)

    def beginning(self, tokens: Sequence[int], characters: int) -> str:
        """The text that the sequence begins with, so many characters of it or a little more.

        Special tokens are spelled out.
        """
        return self._decode(tokens[: characters + TAIL_TOKENS])

    def encode_apart(self, text: str) -> list[int]:
        """The tokens of a text in the middle of another one."""
        return self._encoder.encode_text(text, add_special_tokens=False)

    def tail(self, prompt: Sequence[int]) -> str:
        """The text of the prompt's last tokens, special ones included."""
        return self._decode(prompt[-TAIL_TOKENS:])

    def spell(self, token: int) -> str:
        """The text of one token by itself."""
        return self.special.get(token) or self.detokenizers.spell(token)

    def answer(self, question: Counting, context_length: int) -> wire.Answer:
        """Answers a small question; `context_length` in tokens. Raises `EngineError`."""
        match question:
            case wire.CountTokens():
                tokens = self.chat_prompt(question)
                if question.listed:
                    return wire.Tokenized(question.id, tokens, context_length)
                return wire.Counted(question.id, len(tokens))
            case wire.Tokenize(text=text):
                tokens = self._encoder.encode_text(
                    text, add_special_tokens=question.add_special_tokens
                )
                return wire.Tokenized(question.id, tokens, context_length)
            case wire.Detokenize(token_ids=tokens):
                check_token_ids(tokens, len(self._tokenizer))
                return wire.Detokenized(question.id, self._decode(tokens))
            case wire.Warm():
                raise EngineError("unsupported", "this model keeps no prompts, so none is warmed")

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


Counting = wire.CountTokens | wire.Tokenize | wire.Detokenize | wire.Warm
"""The questions that a tokenizer answers, and one that it refuses for those without a cache."""


def check_token_ids(tokens: Sequence[int], size: int, what: str = "token id") -> None:
    """Raises `EngineError` naming the first of `tokens` outside of a vocabulary of `size`."""
    for token in tokens:
        if not 0 <= token < size:
            raise EngineError(
                "invalid_request",
                f"{what} {token} is not in this model's vocabulary; its ids are 0 to {size - 1}",
            )


def _special_tokens(tokenizer: Any) -> dict[int, str]:
    spellings = {
        token: added.content
        for token, added in tokenizer.added_tokens_decoder.items()
        if added.special
    }
    ids = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return {int(token): str(spelling) for token, spelling in (*spellings.items(), *ids)}
