"""Joining deltas: what goes in comes out, in order, in fewer and larger pieces."""

from __future__ import annotations

import pytest

from engines import wire
from gateway.api.coalesce import Coalescer
from gateway.supervisor.call import CallItem

TOKEN = (wire.TokenLogprob("t", -1.0),)


def text(text: str, choice: int = 0) -> wire.TextDelta:
    return wire.TextDelta(1, choice, text)


def thought(text: str) -> wire.ReasoningDelta:
    return wire.ReasoningDelta(1, 0, text)


def arguments(text: str, index: int = 0) -> wire.ToolCallArguments:
    return wire.ToolCallArguments(1, 0, index, text)


START = wire.ToolCallStart(1, 0, 0, "call", "f")
END = wire.ChoiceFinished(1, 0, "stop")
END_1 = wire.ChoiceFinished(1, 1, "stop")
OVER = wire.Finished(1, wire.Usage(1, 1), wire.Timings())

TABLE: dict[str, tuple[list[CallItem], list[CallItem]]] = {
    "three by three, the first at once": (
        [*(text(letter) for letter in "abcdefgh"), END],
        [text("a"), text("bcd"), text("efg"), text("h"), END],
    ),
    "an end releases what is held": (
        [text("a"), text("b"), END, OVER],
        [text("a"), text("b"), END, OVER],
    ),
    "kinds are not mixed": (
        [thought("a"), thought("b"), thought("c"), text("d"), text("e"), text("f"), END],
        [thought("a"), thought("bc"), text("def"), END],
    ),
    "a call comes after the text before it": (
        [text("a"), text("b"), START, arguments("{"), arguments("}"), END],
        [text("a"), text("b"), START, arguments("{}"), END],
    ),
    "calls are not mixed": (
        [arguments("{"), arguments("}"), arguments("[", 1), arguments("]", 1), END],
        [arguments("{"), arguments("}"), arguments("[]", 1), END],
    ),
    "choices are held apart": (
        [text("a"), text("x", 1), text("b"), text("y", 1), END_1, text("c"), text("d")],
        [text("a"), text("x", 1), text("y", 1), END_1, text("bcd")],
    ),
    "log-probabilities count and travel": (
        [
            text("a"),
            wire.TextDelta(1, 0, "b", TOKEN),
            wire.TextDelta(1, 0, "cd", TOKEN * 2),
            text("e"),
            wire.TextDelta(1, 0, "f", TOKEN),
            END,
        ],
        [
            text("a"),
            wire.TextDelta(1, 0, "bcd", TOKEN * 3),
            text("e"),
            wire.TextDelta(1, 0, "f", TOKEN),
            END,
        ],
    ),
    "everything else releases all": (
        [text("a"), text("x", 1), text("b"), text("y", 1), OVER],
        [text("a"), text("x", 1), text("b"), text("y", 1), OVER],
    ),
}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", TABLE)
def test_what_is_joined(name: str, together: bool) -> None:
    given, wanted = TABLE[name]
    coalescer = Coalescer(3)
    batches = [given] if together else [[item] for item in given]
    assert [item for batch in batches for item in coalescer.add(batch)] == wanted
    assert not coalescer.holding
    assert coalescer.flush() == []


def test_what_is_held_can_be_asked_for() -> None:
    coalescer = Coalescer(3)
    assert coalescer.add([text("a"), text("b"), text("c")]) == [text("a")]
    assert coalescer.holding
    assert coalescer.flush() == [text("bc")]
    assert coalescer.add([text("d"), text("e"), text("f")]) == [text("def")]
