"""The tokens of a scripted model: a word of a text, with the white space around it.

Ids are hashes of words, so they are the same in every process; which word an id stands for is
remembered by the process that met the word, within a bound.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engines import wire
from engines.base import EngineError

REMEMBERED_CHARACTERS = 16 * 2**20
"""More than the largest request, so that what was just cut up can be put together again."""

_WORD = re.compile(r"\s*\S+\s*")
_IDS = 2**31


def words(text: str) -> list[str]:
    """Cuts `text` into tokens that join to it again."""
    return _WORD.findall(text) or ([text] if text else [])


def count_words(text: str) -> int:
    return len(text.split())


def count_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    """The prompt tokens of chat messages: the words of their contents, and one for each medium."""
    texts = sum(len(words(text)) for text in _contents(messages))
    return texts + sum(_media(message.get("content")) for message in messages)


def _contents(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        yield from _texts(message.get("content"))


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return [text for text in parts if isinstance(text, str)]


def _media(content: object) -> int:
    if not isinstance(content, list):
        return 0
    return sum(isinstance(part, dict) and "media" in part for part in content)


class Words:
    """Words by id and ids by word; the least recently met are forgotten first."""

    def __init__(self) -> None:
        self._words: OrderedDict[int, str] = OrderedDict()
        self._characters = 0

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in words(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Raises `EngineError` for an id that no word was met for."""
        unknown = next((token for token in ids if token not in self._words), None)
        if unknown is not None:
            raise EngineError(
                "invalid_request",
                f"token id {unknown} is unknown: a scripted model knows the words it has met",
            )
        return "".join(self._words[token] for token in ids)

    def answer(self, question: wire.Ask, context_length: int) -> wire.Answer:
        """Answers a small question by words. Raises `EngineError`."""
        match question:
            case wire.CountTokens(listed=True):
                texts = _contents(question.messages)
                tokens = [token for text in texts for token in self.encode(text)]
                return wire.Tokenized(question.id, tokens, context_length)
            case wire.CountTokens():
                return wire.Counted(question.id, count_messages(question.messages))
            case wire.Tokenize(text=text):
                return wire.Tokenized(question.id, self.encode(text), context_length)
            case wire.ClearCache():
                return wire.Cleared(question.id, 0, 0)
            case wire.Warm():
                return wire.Counted(question.id, count_messages(question.messages))
            case wire.Detokenize(token_ids=ids):
                return wire.Detokenized(question.id, self.decode(ids))

    def _id(self, word: str) -> int:
        digest = hashlib.blake2s(word.encode("utf-8", "surrogatepass"), digest_size=4).digest()
        token = int.from_bytes(digest) % _IDS
        while (met := self._words.get(token, word)) != word:
            token = (token + 1) % _IDS
        if token not in self._words:
            self._words[token] = met
            self._characters += len(word)
            while self._characters > REMEMBERED_CHARACTERS and len(self._words) > 1:
                self._characters -= len(self._words.popitem(last=False)[1])
        self._words.move_to_end(token)
        return token
