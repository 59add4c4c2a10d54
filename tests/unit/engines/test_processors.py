"""What is done to logits, on arrays small enough to look at."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from engines import wire
from engines.text.logprobs import LOWEST, drawn
from engines.text.processors import (
    Bias,
    Penalties,
    ReasoningBudget,
    TraceMarkers,
    processors_for,
)


def logits(*values: float) -> Any:
    return mx.array([list(map(float, values))])


def row(array: Any) -> list[float]:
    return [round(value, 4) for value in array[0].tolist()]


def test_nothing_is_done_where_nothing_is_asked() -> None:
    assert processors_for(wire.Sampling()) == []
    assert len(processors_for(wire.Sampling(logit_bias={1: 1.0}, presence_penalty=1.0))) == 2


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    penalties = Penalties(wire.Sampling(presence_penalty=1.0, frequency_penalty=0.5))
    tokens = [0, 1]
    assert row(penalties(mx.array(tokens), logits(1, 1, 1))) == [1, 1, 1]  # the prompt is free
    for token, expected in ((2, [1, 1, -0.5]), (2, [1, 1, -1]), (0, [-0.5, 1, -1])):
        tokens.append(token)
        assert row(penalties(mx.array(tokens), logits(1, 1, 1))) == expected


def test_repetition_weakens_the_prompts_tokens_too() -> None:
    penalties = Penalties(wire.Sampling(repetition_penalty=2.0))
    assert row(penalties(mx.array([0, 1]), logits(1, -1, 1))) == [0.5, -2, 1]
    assert row(penalties(mx.array([0, 1, 2]), logits(1, -1, 1))) == [0.5, -2, 0.5]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_types_stay_as_they_are(dtype: Any) -> None:
    given = logits(1, 2, 3).astype(dtype)
    sampling = wire.Sampling(logit_bias={0: 5.0}, presence_penalty=1.0)
    for processor in processors_for(sampling):
        given = processor(mx.array([0]), given)
        assert given.dtype == dtype
    assert row(Bias({0: 5.0, 2: -1.0})(mx.array([0]), logits(1, 2, 3))) == [6, 2, 2]


TAGS = {24: "<t>", 25: "</t>"}


class Letters:
    """A detokenizer whose tokens are letters; those of `TAGS` are special."""

    def add(self, token: int) -> str:
        if token == 23:
            raise ValueError("no such token")
        return chr(ord("a") + token)

    def finish(self) -> str:
        return ""


def forced(budget: int, tokens: list[int], *, opened: bool = False) -> list[int | None]:
    """At each step, the token that is forced, if any; `tokens` are what is drawn."""
    markers = TraceMarkers((("<t>", "</t>"),), {"</t>": [4, 25]}, "</t>" if opened else None)
    limit = ReasoningBudget(budget, markers, Letters(), TAGS.get)
    context, seen = [0], []
    for token in [*tokens, 0]:
        out = limit(mx.array(context), mx.zeros((1, 26)))
        allowed = [at for at, value in enumerate(out[0].tolist()) if value == 0]
        seen.append(allowed[0] if len(allowed) == 1 else None)
        context.append(token if seen[-1] is None else seen[-1])
    return seen


@pytest.mark.parametrize(
    ("budget", "tokens", "opened", "expected"),
    [
        (2, [24, 1, 1, 1, 1, 1], False, [None, None, None, 4, 25, None, None]),
        (0, [24, 1, 1, 1], False, [None, 4, 25, None, None]),
        (0, [1, 1, 1], True, [4, 25, None, None]),
        (2, [1, 1, 1, 1], True, [None, None, 4, 25, None]),
        (2, [24, 1, 25, 1, 1, 1], False, [None] * 7),  # it closes by itself
        (2, [1, 1, 1, 1], False, [None] * 5),  # there is no trace
        (2, [24, 1, 25, 1, 24, 1, 1], False, [None] * 6 + [4, 25]),  # both traces count
        (1, [24, 23, 1, 1], False, [None] * 5),  # what cannot be read ends the watch
    ],
)
def test_a_budget_forces_the_end_of_a_trace(
    budget: int, tokens: list[int], opened: bool, expected: list[int | None]
) -> None:
    assert forced(budget, tokens, opened=opened) == expected[: len(tokens) + 1]


def test_a_budget_forces_nothing_that_was_ruled_out() -> None:
    markers = TraceMarkers((("<t>", "</t>"),), {"</t>": [25, 4, 5]}, "</t>")
    limit = ReasoningBudget(0, markers, Letters(), TAGS.get)
    assert row(limit(mx.array([0]), mx.zeros((1, 26)))).count(0) == 1
    allowed = [-mx.inf if at == 4 else at for at in range(26)]
    assert row(limit(mx.array([0, 25]), logits(*allowed))) == allowed
    assert row(limit(mx.array([0, 25, 6]), mx.zeros((1, 26)))) == [0] * 26  # 5 belonged to 4


def test_logprobs_of_several_rows_at_once() -> None:
    rows = [mx.array([-1.0, -2.0, -0.5, -mx.inf]), mx.array([-0.1, -3.0, -3.0, -4.0])]
    first, second = drawn(rows, [3, 0], 2)
    assert first == (LOWEST, [(2, -0.5), (0, -1.0)])
    assert second.logprob == pytest.approx(-0.1)
    assert [token for token, _ in second.best][:1] == [0]
    assert drawn(rows, [2, 1], 0)[0] == (-0.5, [])
    assert len(drawn(rows, [2, 1], 99)[0].best) == 4
