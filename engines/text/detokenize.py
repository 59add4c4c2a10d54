"""Tokens to text, one row at a time: whole characters only.

Byte-level vocabularies (GPT-2 style BPE, and SentencePiece with byte fallback) decode through a
table of bytes shared by all rows and an incremental UTF-8 decoder per row, so a token costs one
lookup whatever the length of the text. Other vocabularies use mlx-lm's own detokenizer.

The text is what the vocabulary spells, special tokens included; only the leading space that
SentencePiece adds to every text is taken away.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer


class Detokenizer(Protocol):
    """The text of one row."""

    def add(self, token: int) -> str:
        """The whole characters that `token` completes."""

    def finish(self) -> str:
        """What was held back: a character that never became whole is shown as U+FFFD.

        More tokens may follow.
        """


class Detokenizers(Protocol):
    """Makes detokenizers of one vocabulary."""

    def __call__(self) -> Detokenizer:
        """A detokenizer for a new row."""

    def spell(self, token: int) -> str:
        """The text of `token` by itself; U+FFFD stands for bytes that are no whole character."""


def detokenizers(tokenizer: Any) -> Detokenizers:
    """The detokenizers of `tokenizer`, a `mlx_lm` TokenizerWrapper."""
    made = tokenizer.detokenizer
    if isinstance(made, BPEStreamingDetokenizer):
        return _ByteMaker(_TokenBytes(made.tokenmap, _spell_bpe), trim=False)
    if isinstance(made, SPMStreamingDetokenizer):
        return _ByteMaker(_TokenBytes(made.tokenmap, _spell_spm), trim=made.trim_space)
    return _LibraryMaker(tokenizer)


class _TokenBytes(dict[int, bytes]):
    """Bytes by token, filled as tokens are met: most of a large vocabulary never is."""

    def __init__(self, vocabulary: Sequence[Any], spell: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._spell = spell

    def __missing__(self, token: int) -> bytes:
        # A model's output is often padded to a round number of tokens that spell nothing.
        piece = self._vocabulary[token] if token < len(self._vocabulary) else None
        spelled = self._spell(piece) if piece is not None else b""
        self[token] = spelled
        return spelled


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins for the 256 bytes in byte-level BPE (GPT-2's `encoder.py`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + at): byte for at, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _spell_bpe(piece: str) -> bytes:
    if all(character in _ALPHABET for character in piece):
        return bytes(_ALPHABET[character] for character in piece)
    return piece.encode()  # an added token stands for itself


def _spell_spm(piece: bytes) -> bytes:
    return piece.replace("\u2581".encode(), b" ")


class _ByteMaker:
    def __init__(self, table: _TokenBytes, *, trim: bool) -> None:
        self._table = table
        self._trim = trim

    def __call__(self) -> Detokenizer:
        return _TrimmingDetokenizer(self._table) if self._trim else _ByteDetokenizer(self._table)

    def spell(self, token: int) -> str:
        return self._table[token].decode("utf-8", "replace")


class _ByteDetokenizer:
    __slots__ = ("_decode", "_table")

    def __init__(self, table: _TokenBytes) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def add(self, token: int) -> str:
        return self._decode(self._table[token])

    def finish(self) -> str:
        return self._decode(b"", True)


class _TrimmingDetokenizer(_ByteDetokenizer):
    __slots__ = ("_begun",)

    def __init__(self, table: _TokenBytes) -> None:
        super().__init__(table)
        self._begun = False

    def add(self, token: int) -> str:
        text = super().add(token)
        if self._begun or not text:
            return text
        self._begun = True
        return text.removeprefix(" ")


class _LibraryMaker:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self) -> Detokenizer:
        return _LibraryDetokenizer(self._tokenizer.detokenizer)

    def spell(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))


class _LibraryDetokenizer:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def add(self, token: int) -> str:
        self._inner.add_token(token)
        return str(self._inner.last_segment)

    def finish(self) -> str:
        self._inner.finalize()
        return str(self._inner.last_segment)
