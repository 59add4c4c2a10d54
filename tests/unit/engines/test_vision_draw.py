"""How a row of a vision model draws: its own way, within a generator that is greedy."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from engines import wire
from engines.text.processors import processors_for
from engines.text.sampling import greedy, sampler_for
from engines.vision.draw import Draw

LOGITS = mx.array([[0.0, 3.0, 2.0, 1.0]])


def token_left(logits: Any) -> int:
    """The one token that is left, whatever is added up over the rest."""
    values: list[float] = logits[0].tolist()
    (token,) = [index for index, value in enumerate(values) if value == 0.0]
    assert all(value == float("-inf") for value in values[:token] + values[token + 1 :])
    return token


def test_one_token_is_left_and_its_logprob_is_that_of_before() -> None:
    draw = Draw([], greedy, 2)
    assert token_left(draw(mx.array([1, 2]), LOGITS)) == 1
    assert token_left(draw.process_last_token(1, LOGITS[:, ::-1])) == 2
    first, second = draw.take(1), draw.take(2)
    assert first is not None
    assert second is not None
    assert [token for token, _ in first.best] == [1, 2]
    assert abs(first.logprob - (LOGITS - mx.logsumexp(LOGITS))[0, 1].item()) < 1e-6
    assert second.logprob == first.logprob


def test_without_logprobs_nothing_is_kept() -> None:
    draw = Draw([], greedy, None)
    draw(mx.array([1]), LOGITS)
    assert draw.take(1) is None


def test_processors_go_before_the_sampler() -> None:
    banned = processors_for(wire.Sampling(logit_bias={1: -100.0}))
    assert token_left(Draw(banned, greedy, None)(mx.array([0]), LOGITS)) == 2
    once = processors_for(wire.Sampling(presence_penalty=2.0))
    draw = Draw(once, greedy, None)
    assert token_left(draw(mx.array([0, 1, 1]), LOGITS)) == 1
    assert token_left(draw.process_last_token(1, LOGITS)) == 2
    assert token_left(draw.process_last_token(2, LOGITS)) in (1, 3)


def test_a_seed_repeats_itself() -> None:
    def drawn(seed: int) -> list[int]:
        draw = Draw([], sampler_for(wire.Sampling(temperature=5.0, seed=seed)), None)
        return [token_left(draw.process_last_token(0, LOGITS)) for _ in range(12)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
