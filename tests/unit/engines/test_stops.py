"""Stop strings are found whole however the text is cut, and nothing else is held back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.parsers.stops import StopScanner


def scan(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """The shown text and the matched stop string of one whole generation."""
    scanner = StopScanner(stops)
    shown = ""
    for piece in pieces:
        text, stop = scanner.feed(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + scanner.flush(), None


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """By definition: the first character at which some stop string ends, the longest there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("stops", "text", "shown", "stop"),
    [
        ([], "abc", "abc", None),
        ([""], "abc", "abc", None),
        (["END"], "to the END of", "to the ", "END"),
        (["END"], "to the EN", "to the EN", None),
        (["b", "a"], "cab", "c", "a"),
        (["bc", "abcd"], "xabcd", "xa", "bc"),
        (["bcd", "abcd"], "xabcd", "x", "abcd"),
        (["ab", "abc"], "abc", "", "ab"),
        (["aab"], "aaab", "a", "aab"),
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
        (["日本"], "今日は日本語", "今日は", "日本"),
    ],
)
def test_whole_and_by_character(stops: list[str], text: str, shown: str, stop: str | None) -> None:
    assert scan(stops, [text]) == (shown, stop)
    assert scan(stops, list(text)) == (shown, stop)


@given(
    stops=st.lists(st.text("ab<", max_size=4), max_size=4),
    pieces=st.lists(st.text("ab<", max_size=5), max_size=8),
)
def test_random_cuts_equal_the_whole(stops: list[str], pieces: list[str]) -> None:
    assert scan(stops, pieces) == reference(stops, "".join(pieces))


@given(
    stops=st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4),
    pieces=st.lists(st.text("ab<", max_size=5), max_size=8),
)
def test_only_a_possible_beginning_is_held_back(stops: list[str], pieces: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = fed = ""
    for piece in pieces:
        fed += piece
        text, stop = scanner.feed(piece)
        shown += text
        if stop is not None:
            return
        held = fed[len(shown) :]
        assert fed == shown + held
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_flush_gives_what_was_held_once() -> None:
    scanner = StopScanner(["<|im_end|>"])
    assert scanner.feed("a <|im") == ("a ", None)
    assert scanner.flush() == "<|im"
    assert scanner.flush() == ""
