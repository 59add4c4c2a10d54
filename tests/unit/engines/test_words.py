"""The tokens of scripted models: words, their ids, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import wire, words
from engines.base import EngineError


@given(st.text())
def test_detokenizing_undoes_tokenizing(text: str) -> None:
    known = words.Words()
    ids = known.encode(text)
    assert known.decode(ids) == text
    assert len(ids) == len(words.words(text))
    assert all(0 <= token < 2**31 for token in ids)


def test_ids_are_the_same_everywhere() -> None:
    assert words.Words().encode("some words") == words.Words().encode("some words")


def test_a_word_never_met_is_refused() -> None:
    with pytest.raises(EngineError, match="77"):
        words.Words().decode([77])


def test_what_was_met_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "REMEMBERED_CHARACTERS", 10)
    known = words.Words()
    (old,) = known.encode("aaaaaa")
    (new,) = known.encode("bbbbbb")
    assert known.decode([new]) == "bbbbbb"
    with pytest.raises(EngineError):
        known.decode([old])


def test_two_words_with_one_hash_are_two_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_IDS", 7)
    known = words.Words()
    ids = known.encode("a b c d e")
    assert len(set(ids)) == 5
    assert known.decode(ids) == "a b c d e"


@pytest.mark.parametrize(
    ("content", "tokens"),
    [("a b", 2), ("", 0), (None, 0), (12, 0), ([{"type": "text", "text": "a b c"}, {}, 3], 3)],
)
def test_the_tokens_of_a_message(content: object, tokens: int) -> None:
    assert words.count_messages([{"role": "user", "content": content}]) == tokens


def test_questions() -> None:
    known = words.Words()
    counted = known.answer(wire.CountTokens(1, "", [{"role": "user", "content": "a b"}]), 100)
    assert counted == wire.Counted(1, 2)
    cut = known.answer(wire.Tokenize(2, "", "a b"), 100)
    assert isinstance(cut, wire.Tokenized)
    assert (cut.id, len(cut.token_ids), cut.context_length) == (2, 2, 100)
    assert known.answer(wire.Detokenize(3, "", cut.token_ids), 100) == wire.Detokenized(3, "a b")
