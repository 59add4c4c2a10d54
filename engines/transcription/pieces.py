"""What a model makes of a stretch of audio, whatever its own form of a result is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engines import wire


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment without its call and number; what the model does not tell is None."""

    start_s: float
    end_s: float
    text: str
    words: tuple[wire.Word, ...] = ()
    tokens: tuple[int, ...] = ()
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


class Run(Protocol):
    """One call on its way, whatever the model: `step` does one bounded piece of it.

    `tokens` is how many were generated; `language` a code, None while nobody knows it.
    """

    over: bool
    tokens: int
    language: str | None

    def step(self) -> list[Piece]:
        """The segments that this step completes, in order. Raises `EngineError`."""


def pieces_of(result: Any, start_s: float, length_s: float) -> list[Piece]:
    """The segments in a result of mlx-audio for audio that begins at `start_s`.

    Its forms are an object with `sentences` of aligned tokens (NeMo's models), one with a `text`
    and maybe `segments`, a text, a mapping, and a generator of texts or of such objects. Without
    times there is one segment, as long as the audio.
    """
    if (sentences := getattr(result, "sentences", None)) is not None:
        return [_aligned(sentence, start_s) for sentence in sentences if sentence.text.strip()]
    segments = _field(result, "segments") or ()
    timed = [_timed(segment, start_s, length_s) for segment in segments]
    if kept := [piece for piece in timed if piece.text.strip()]:
        return kept
    text = _text_of(result)
    return [Piece(start_s, start_s + length_s, text)] if text.strip() else []


def language_of(result: Any) -> str | None:
    """The language that a result names, if it is a single one."""
    language = _field(result, "language")
    return language if isinstance(language, str) and language else None


def tokens_of(result: Any) -> int:
    count = _field(result, "generation_tokens")
    return count if isinstance(count, int) else 0


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _text_of(result: Any) -> str:
    if isinstance(result, str):
        return result
    text = _field(result, "text")
    if text is not None:
        return str(text)
    if isinstance(result, Iterable):
        return "".join(_text_of(part) for part in result)
    return ""


def _aligned(sentence: Any, start_s: float) -> Piece:
    return Piece(
        start_s + float(sentence.start),
        start_s + float(sentence.end),
        str(sentence.text),
        tuple(_aligned_words(sentence.tokens, start_s)),
    )


def _aligned_words(tokens: Iterable[Any], start_s: float) -> Iterator[wire.Word]:
    """Tokens joined to words: one that begins with white space begins a word."""
    word: wire.Word | None = None
    for token in tokens:
        text, start, end = str(token.text), float(token.start), float(token.end)
        if word is None or text[:1].isspace():
            if word is not None and word.text.strip():
                yield word
            word = wire.Word(text, start_s + start, start_s + end)
        else:
            word = wire.Word(word.text + text, word.start_s, start_s + end)
    if word is not None and word.text.strip():
        yield word


def _timed(segment: Any, start_s: float, length_s: float) -> Piece:
    start, end = _number(segment, "start", 0.0), _number(segment, "end", length_s)
    words = [
        wire.Word(
            str(_field(word, "word") or _field(word, "text") or ""),
            start_s + _number(word, "start", start),
            start_s + _number(word, "end", end),
        )
        for word in _field(segment, "words") or ()
    ]
    return Piece(
        start_s + start, start_s + max(start, end), str(_field(segment, "text") or ""), tuple(words)
    )


def _number(value: Any, name: str, otherwise: float) -> float:
    found = _field(value, name)
    return float(found) if isinstance(found, int | float) else otherwise
