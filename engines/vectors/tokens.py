"""Texts to the token rows that an encoder takes, with its special tokens, within its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines import wire
from engines.base import EngineError
from engines.text.vocabulary import Vocabulary, check_token_ids

_PROBE = "a"


class Texts:
    """One model's tokenizer for whole texts. `max_tokens` counts special tokens too.

    `tokenizer` is an mlx-lm TokenizerWrapper, as everywhere in the engines. `vocabulary_size` is of
    the model, whose embeddings are not always as many as its tokenizer's tokens. `typed`: the model
    is told which text of a pair a token is of.
    """

    def __init__(self, tokenizer: Any, max_tokens: int, vocabulary_size: int) -> None:
        self.max_tokens = max_tokens
        self.vocabulary = Vocabulary(tokenizer)
        self.pad = int(tokenizer.pad_token_id or 0)
        self._tokenizer = tokenizer._tokenizer
        self._vocabulary_size = vocabulary_size
        self.typed = "token_type_ids" in self._tokenizer.model_input_names
        self.before, self.after = self._around()

    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text, as the tokenizer adds them."""
        bare, whole = self._plain([_PROBE], special=False)[0], self._plain([_PROBE])[0]
        for at in range(len(whole) - len(bare) + 1):
            if whole[at : at + len(bare)] == bare:
                return whole[:at], whole[at + len(bare) :]
        return [], []

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """With special tokens, uncut."""
        return self._plain(texts)

    def content(self, text: str) -> list[int]:
        """Without special tokens."""
        return self._plain([text], special=False)[0]

    def wrap(self, tokens: Sequence[int], prompt: str, what: str) -> list[int]:
        """A client's own tokens, checked, with a prompt and special tokens where they lack them.

        Raises `EngineError`, naming the input as `what`.
        """
        check_token_ids(tokens, self._vocabulary_size, f"{what}: token id")
        whole = list(tokens)
        if whole[: len(self.before)] == self.before:
            whole = whole[len(self.before) :]
        if self.after and whole[-len(self.after) :] == self.after:
            whole = whole[: -len(self.after)]
        start = self.content(prompt) if prompt else []
        return [*self.before, *start, *whole, *self.after]

    def fit(self, tokens: list[int], truncate: bool, what: str) -> list[int]:
        """The row as it goes in: cut, if that is wanted. Raises `EngineError`, naming `what`."""
        if len(tokens) <= self.max_tokens:
            return tokens
        if not truncate:
            raise EngineError(
                "context_length_exceeded",
                f"{what} has {len(tokens)} tokens, and this model takes {self.max_tokens};"
                " shorten it, or ask for truncate",
            )
        return tokens[: self.max_tokens - len(self.after)] + self.after

    def pairs(
        self, query: str, documents: Sequence[str], truncate: bool
    ) -> list[tuple[list[int], list[int]]]:
        """Tokens and token types of the query beside each document, of which the end is cut.

        Raises `EngineError` for a query that leaves no room, or without `truncate` a pair.
        """
        alone = len(self._pairs(query, [""])[0][0])
        if alone >= self.max_tokens:
            raise EngineError(
                "context_length_exceeded",
                f"the query takes {alone} tokens and leaves no room for a document in the"
                f" {self.max_tokens} that this model takes",
            )
        pairs = self._pairs(query, documents)
        long = [i for i, (tokens, _) in enumerate(pairs) if len(tokens) > self.max_tokens]
        if long and not truncate:
            self.fit(pairs[long[0]][0], False, f"documents[{long[0]}] with the query")
        if long:
            cut = self._pairs(
                query, [documents[i] for i in long], truncation="only_second",
                max_length=self.max_tokens,
            )  # fmt: skip
            for i, pair in zip(long, cut, strict=True):
                pairs[i] = pair
        return pairs

    def answer(self, question: wire.Ask, context_length: int) -> wire.Answer:
        """Answers a small question. Raises `EngineError`."""
        if isinstance(question, wire.ClearCache):
            return wire.Cleared(question.id, 0, 0)
        return self.vocabulary.answer(question, context_length)

    def _plain(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=special, padding=False, truncation=False, verbose=False
        )
        return [list(tokens) for tokens in encoded["input_ids"]]

    def _pairs(
        self, query: str, documents: Sequence[str], **options: Any
    ) -> list[tuple[list[int], list[int]]]:
        encoded = self._tokenizer(
            [query] * len(documents),
            list(documents),
            padding=False,
            return_token_type_ids=True,
            verbose=False,
            **{"truncation": False, **options},
        )
        return list(zip(encoded["input_ids"], encoded["token_type_ids"], strict=True))
