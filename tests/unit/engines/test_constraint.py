"""What one row may draw: phases of a constraint, on a vocabulary of bytes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from engines.text.constrain.constraint import Constraint, Thinking
from engines.text.processors import TraceMarkers, TraceReader
from tests.unit.parsers.forcing import Vocabulary

BYTES = Vocabulary.of(special=False)
WIDTH = len(BYTES.spelled) + 3
"""Models have logits for more tokens than their tokenizer knows."""
CLOSED = TraceMarkers((("<t>", "</t>"),), {}, None)
OPENED = TraceMarkers((("<t>", "</t>"),), {}, "</t>")


class Pieces:
    """A detokenizer of tokens that are text by number."""

    def add(self, token: int) -> str:
        return BYTES.spelled[token].decode()

    def finish(self) -> str:
        return ""


def tokens(text: str) -> list[int]:
    return list(BYTES.matching.tokenize_str(text))


def constraint(first: str, later: str = "", markers: TraceMarkers | None = None) -> Constraint:
    thinking = None
    if markers is not None:
        trace = TraceReader(markers, Pieces(), lambda _: None)
        openers = [opener for opener, _ in markers.pairs if markers.open is None]
        thinking = Thinking(trace, BYTES.matcher(f"start: {later}"), openers, tokens)
    return Constraint(BYTES.matcher(f"start: {first}"), [BYTES.end], thinking)


def allowed(held: Constraint, said: str) -> str:
    """What may come behind `said`; END is a full stop, and "any" stands for more than 100."""
    context = [0]
    logits = held(mx.array(context), mx.zeros((1, WIDTH)))
    for token in tokens(said):
        assert logits[0, token].item() == 0, said
        context.append(token)
        logits = held(mx.array(context), mx.zeros((1, WIDTH)))
    found = [at for at, value in enumerate(logits[0].tolist()) if value == 0]
    if len(found) > 100:
        return "any" if BYTES.end not in found else "any."
    return "".join("." if at == BYTES.end else BYTES.spelled[at].decode() for at in sorted(found))


@pytest.mark.parametrize(
    ("said", "may_follow"),
    [("", "ab"), ("a", "12"), ("a1", "."), ("b", ".c"), ("bc", ".")],
)
def test_the_grammar_decides(said: str, may_follow: str) -> None:
    held = constraint('"a" /[12]/ | "b" "c"?')
    assert sorted(allowed(held, said)) == sorted(may_follow)
    assert held.error is None


@pytest.mark.parametrize(
    ("said", "may_follow"),
    [
        ("", "<a"),  # a trace or the answer
        ("a", "."),
        ("<t>", "any"),
        ("<t>x</", "any"),
        ("<t>x</t>", "\n"),  # not the answer of the beginning
        ("<t>x</t>\n", "b"),
        ("<t>a</t>\nb", "."),
        ("<", "t-"),  # the answer may begin like a trace
        ("<-", "."),
    ],
)
def test_a_trace_may_come_first(said: str, may_follow: str) -> None:
    held = constraint('"<t>" | "a" | "<-"', '"\\n" "b"', CLOSED)
    assert sorted(allowed(held, said)) == sorted(may_follow)
    assert held.error is None


@pytest.mark.parametrize(("said", "may_follow"), [("", "any"), ("x</t>", "b"), ("</t>b", ".")])
def test_a_trace_that_the_prompt_has_begun(said: str, may_follow: str) -> None:
    assert sorted(allowed(constraint('"a"', '"b"', OPENED), said)) == sorted(may_follow)


def test_text_behind_a_closer_in_one_token_is_a_part_of_the_answer() -> None:
    class Merged(Pieces):
        def add(self, token: int) -> str:
            return super().add(token) + ("b" if BYTES.spelled[token] == b">" else "")

    held = constraint('"a"', '"b" "c"', OPENED)
    held._thinking = Thinking(
        TraceReader(OPENED, Merged(), lambda _: None), BYTES.matcher('start: "b" "c"'), (), tokens
    )
    assert allowed(held, "x</t>") == "c"


def test_what_does_not_fit_is_an_error_and_no_exception() -> None:
    held = constraint('"a"')
    held(mx.array([0]), mx.zeros((1, WIDTH)))
    wrong: Any = held(mx.array([0, tokens("x")[0]]), mx.zeros((1, WIDTH)))
    assert held.error
    assert wrong.tolist() == [[0.0] * WIDTH]
    said = held.error
    held(mx.array([0, 0, 0]), mx.zeros((1, WIDTH)))
    assert held.error == said


def test_a_tokenizer_that_raises_is_an_error_and_no_exception() -> None:
    held = constraint('"a"', '"b"', OPENED)
    held(mx.array([0]), mx.zeros((1, WIDTH)))
    held(mx.array([0, WIDTH - 1]), mx.zeros((1, WIDTH)))
    assert held.error is not None
    assert held.error.startswith("KeyError")


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_types_stay_as_they_are(dtype: Any) -> None:
    for markers in (None, OPENED):
        held = constraint('"a"', '"b"', markers)
        assert held(mx.array([0]), mx.zeros((1, WIDTH), dtype)).dtype == dtype
