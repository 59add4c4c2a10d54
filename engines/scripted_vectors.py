"""What a scripted model makes of texts: vectors and scores that are always the same.

Texts that share words have vectors that are near each other, and a document's score is the share of
the query's words that it has, so what a client does with either can be seen to work.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence

from engines import wire
from engines.base import EngineError
from engines.words import Words, count_words


def text_of(given: str | list[int], known: Words) -> str:
    """An input as text: of tokens those it has met, any others by their numbers."""
    if isinstance(given, str):
        return given
    try:
        return known.decode(given)
    except EngineError:
        return " ".join(map(str, given))


def vector_of(text: str, size: int) -> list[float]:
    """Of length 1: the sum of its words' vectors, which their hashes give."""
    total = [0.0] * size
    for word in text.lower().split() or [""]:
        digest = hashlib.shake_128(word.encode("utf-8", "surrogatepass")).digest(size)
        total = [value + byte - 127.5 for value, byte in zip(total, digest, strict=True)]
    return _of_length_1(total)


def score_of(query: str, document: str) -> float:
    """From 0 to 1: how many of the query's words the document has."""
    asked, told = set(query.lower().split()), set(document.lower().split())
    return len(asked & told) / len(asked) if asked else 0.0


class Weighing:
    """One call, answered when all of it is done; it takes the place of an `Answer`.

    Raises `EngineError` for what a model of `size` dimensions and `context_length` cannot do.
    """

    over = False
    reasoning_tokens = 0

    def __init__(
        self, request: wire.Embed | wire.Rerank, size: int, context_length: int, known: Words
    ) -> None:
        self._request = request
        self._size = size
        if isinstance(request, wire.Embed):
            _check(request, size)
            self.texts = [text_of(given, known) for given in request.inputs]
            what = "input[{}]"
        else:
            self.texts = [f"{request.query} {document}" for document in request.documents]
            what = "documents[{}] with the query"
        long = max(range(len(self.texts)), key=lambda index: count_words(self.texts[index]))
        tokens = count_words(self.texts[long])
        if tokens > context_length and not request.truncate:
            raise EngineError(
                "context_length_exceeded",
                f"{what.format(long)} has {tokens} tokens, and this model takes {context_length};"
                " shorten it, or ask for truncate",
            )
        self.tokens = sum(min(count_words(text), context_length) for text in self.texts)
        self._vectors: list[list[float]] = []

    def add(
        self, text: str, special: bool | None, *, tokens: int, logprobs: Sequence[object] = ()
    ) -> list[wire.Delta | wire.ChoiceFinished]:
        """One text more is done; nothing is said of it yet."""
        self._next_vector()
        return []

    def finish(self, end: str) -> list[wire.Output | wire.ChoiceFinished]:
        """Everything there is to say."""
        request = self._request
        if isinstance(request, wire.Rerank):
            scores = [score_of(request.query, document) for document in request.documents]
            return [wire.Scores(request.id, scores)]
        while len(self._vectors) < len(self.texts):
            self._next_vector()
        data = b"".join(array("f", vector).tobytes() for vector in self._vectors)
        parts = range(0, len(data), wire.MAX_PART_BYTES)
        return [
            wire.Bytes(request.id, seq, data[at : at + wire.MAX_PART_BYTES])
            for seq, at in enumerate(parts)
        ]

    def _next_vector(self) -> None:
        request = self._request
        if isinstance(request, wire.Embed) and len(self._vectors) < len(self.texts):
            vector = vector_of(self.texts[len(self._vectors)], self._size)
            shorter = vector[: request.dimensions]
            self._vectors.append(_of_length_1(shorter) if request.dimensions else vector)


def _check(request: wire.Embed, size: int) -> None:
    if request.dimensions is not None and request.dimensions > size:
        raise EngineError(
            "unsupported",
            f"dimensions is {request.dimensions}, but a vector of this model has {size}",
        )
    if request.prompt not in (None, "query", "document"):
        raise EngineError(
            "invalid_request", f"this model has no prompt {request.prompt!r}; it has no prompts"
        )


def _of_length_1(values: list[float]) -> list[float]:
    length = math.hypot(*values)
    return [value / length for value in values] if length else values
