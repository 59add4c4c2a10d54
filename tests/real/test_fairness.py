"""Long prompts beside running calls: chunks in between, turns among engines, room for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.generate import GenerationBatch

import engines.text.engine
from engines import wire
from engines.base import Emitted, EngineError
from engines.text.model import LoadedModel, load
from engines.text.pacing import LEAST, MOST
from engines.turns import LONG
from tests.real.test_text_engine import HERMES, LIMITS, NANO, NO_CACHE, SCRIPTS, STORY, Driven

LONG_TEXT = "word " * (2 * LONG)
TOKEN_BYTES = 2048
"""KV of one token of scripted-hermes: 4 layers of 2 heads of 32 numbers, keys and values."""


class Turned(Driven):
    """An engine that gets its turns from the test. `said` is what passed, by name and call."""

    said: list[str]

    def __init__(self, path: Path = NANO, limits: wire.Limits = NO_CACHE, **spec: Any) -> None:
        self.said = []
        super().__init__(path, limits, **spec)

    def emit(self, event: Emitted) -> None:
        if isinstance(event, wire.WantTurn | wire.TurnOver):
            self.said.append(type(event).__name__)
            return
        self.events.append(event)
        if isinstance(event, wire.Started | wire.Finished | wire.Failed):
            self.said.append(f"{type(event).__name__} {event.id}")

    def rest(self) -> list[str]:
        """Runs until there is nothing to do; what was said meanwhile."""
        self.said.clear()
        self.run(at_most=20_000)
        return self.said


@pytest.fixture
def turned() -> Iterator[Turned]:
    driven = Turned()
    yield driven
    driven.engine.close()


# --- chunks ---------------------------------------------------------------------------------------


def progress(driven: Driven, call_id: int) -> list[int]:
    return [e.done_tokens for e in driven.of(call_id) if isinstance(e, wire.PromptProgress)]


def test_never_two_chunks_in_a_row_while_a_call_decodes() -> None:
    driven = Driven(NANO, NO_CACHE, prefill_step_size=64)
    driven.submit(0, "Say hello.", max_tokens=10_000)
    for _ in range(10):
        driven.engine.step()
    driven.submit(1, LONG_TEXT, max_tokens=1)
    for _ in range(2 * LONG // 64 + 10):
        driven.engine.step()
    assert driven.one(1, wire.Finished)
    chunks = [n for n, event in enumerate(driven.events) if is_chunk(event)]
    assert len(chunks) > 2 * LONG // 64
    for before, after in pairwise(chunks):
        between = driven.events[before:after]
        assert any(isinstance(event, wire.TextDelta) and event.id == 0 for event in between)
    driven.engine.close()


def is_chunk(event: Any) -> bool:
    return isinstance(event, wire.PromptProgress) and event.id == 1


def test_chunks_grow_and_shrink_with_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time here is what the test makes of it: a millisecond a token, then ten times that."""
    driven = Driven(NANO, NO_CACHE, step_target_s=0.15)
    clock = Clock(driven)
    monkeypatch.setattr("engines.text.batch.monotonic", clock)
    sizes = chunk_sizes(driven, clock, LONG)
    assert sizes[-3] == pytest.approx(150, rel=0.05)
    clock.per_token_s = 0.01
    sizes = chunk_sizes(driven, clock, LONG)
    assert set(sizes[3:-2]) == {LEAST}
    clock.per_token_s = 1e-6
    sizes = chunk_sizes(driven, clock, 2200)
    assert max(sizes) == MOST // 2  # it would be the next
    driven.engine.close()


class Clock:
    """Counts what went through the model, by the progress that was told: time is `per_token_s`."""

    def __init__(self, driven: Driven) -> None:
        self.per_token_s = 1e-3
        self.now = 0.0
        generator = driven.engine._now_serving().batch._generator
        step = generator.next

        def timed() -> Any:
            prompts, tokens = step()
            self.now += generator.prefill_step_size * self.per_token_s
            return prompts, tokens

        generator.next = timed  # type: ignore[method-assign]

    def __call__(self) -> float:
        return self.now


def chunk_sizes(driven: Driven, clock: Clock, tokens: int) -> list[int]:
    driven.events.clear()
    driven.engine.submit(
        wire.Generate(0, prompt="word " * tokens, sampling=wire.Sampling(0), max_tokens=1)
    )
    driven.run()
    done = [0, *progress(driven, 0)]
    return [after - before for before, after in pairwise(done)]


# --- turns ----------------------------------------------------------------------------------------


def test_a_long_prompt_waits_and_others_pass_it(turned: Turned) -> None:
    turned.submit(0, LONG_TEXT, max_tokens=1)
    turned.submit(1, LONG_TEXT + "too", max_tokens=1)
    turned.submit(2, "Say hello.", max_tokens=3)
    assert turned.rest() == ["WantTurn", "Started 2", "Finished 2"]
    assert not turned.engine.busy
    assert (turned.engine.running, turned.engine.waiting) == (0, 2)
    turned.engine.take_turn()
    assert turned.rest() == ["Started 0", "TurnOver", "WantTurn", "Finished 0"]
    turned.submit(3, "Say hello.", max_tokens=3)
    assert turned.rest() == ["Started 3", "Finished 3"]
    turned.engine.take_turn()
    assert turned.rest() == ["Started 1", "TurnOver", "Finished 1"]


def test_what_is_cached_needs_no_turn() -> None:
    turned = Turned(NANO, LIMITS)
    turned.submit(0, LONG_TEXT, max_tokens=1)
    turned.rest()
    turned.engine.take_turn()
    turned.rest()
    turned.submit(1, LONG_TEXT + "and more", max_tokens=1)
    assert turned.rest() == ["Started 1", "Finished 1"]
    turned.engine.close()


def test_a_call_that_waits_for_its_turn_can_be_cancelled(turned: Turned) -> None:
    turned.submit(0, LONG_TEXT)
    assert turned.rest() == ["WantTurn"]
    turned.engine.cancel(0)
    assert turned.said == ["WantTurn", "TurnOver", "Failed 0"]
    assert turned.one(0, wire.Failed).code == "cancelled"
    turned.engine.take_turn()  # it was on its way
    assert turned.rest() == []
    turned.submit(1, LONG_TEXT, max_tokens=1)
    assert turned.rest() == ["WantTurn"]


def test_a_cancelled_prefill_gives_its_turn_back_and_the_next_asks(turned: Turned) -> None:
    turned.submit(0, LONG_TEXT)
    turned.submit(1, LONG_TEXT + "too", max_tokens=1)
    turned.rest()
    turned.engine.take_turn()
    turned.engine.step()
    turned.engine.cancel(0)
    assert turned.said == ["WantTurn", "Started 0", "TurnOver", "Failed 0"]
    assert turned.rest() == ["WantTurn"]


def test_a_failing_step_gives_the_turn_back(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of something")

    turned.submit(1, "Say hello.", max_tokens=500)
    turned.engine.step()
    turned.engine.step()
    turned.submit(0, LONG_TEXT)
    turned.engine.step()
    turned.engine.take_turn()
    with monkeypatch.context() as patch:
        patch.setattr(GenerationBatch, "_step", broken)
        turned.engine.step()
    assert turned.said[-3:] == ["Failed 1", "TurnOver", "Failed 0"]
    turned.submit(2, LONG_TEXT, max_tokens=1)
    assert turned.rest() == ["WantTurn"]


def test_choices_share_one_turn(turned: Turned) -> None:
    turned.submit(0, LONG_TEXT, max_tokens=2, n=3)
    turned.rest()
    turned.engine.take_turn()
    assert turned.rest() == ["Started 0", "TurnOver", "Finished 0"]


def test_a_model_that_cannot_be_batched_takes_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbatchable(spec: wire.EngineSpec, report: Any) -> LoadedModel:
        return replace(load(spec, report), batchable=False)

    monkeypatch.setattr(engines.text.engine, "load", unbatchable)
    turned = Turned()
    turned.submit(0, LONG_TEXT, max_tokens=1)
    turned.submit(1, "Say hello.", max_tokens=3)
    assert turned.rest() == ["WantTurn", "Started 1", "Finished 1"]
    turned.engine.take_turn()
    assert turned.rest() == ["Started 0", "TurnOver", "Finished 0"]
    turned.engine.close()


# --- room -----------------------------------------------------------------------------------------


def test_what_does_not_fit_together_runs_one_after_the_other() -> None:
    """And a short call behind one that waits for room is served in its order, not for ever last."""
    driven = Driven(HERMES, wire.Limits(2**31, 2**23, TOKEN_BYTES * 1024, 0, 2**24))
    for call_id in (0, 1):
        driven.submit(call_id, STORY + " please" * 300)
    driven.submit(2, "Say hello.")
    most, order = 0, list[int]()
    while driven.engine.busy:
        driven.engine.step()
        most = max(most, driven.engine.running)
        order = [event.id for event in driven.events if isinstance(event, wire.Started)]
        if len(order) == 1:
            assert driven.engine.running <= 1
    assert order == [0, 1, 2]
    assert driven.text(2) == SCRIPTS["Say hello."]
    assert {event.id for event in driven.events if isinstance(event, wire.Finished)} == {0, 1, 2}
    driven.engine.close()


def test_what_can_never_fit_is_refused_at_once() -> None:
    """The gateway answers this code with 400."""
    driven = Driven(HERMES, wire.Limits(2**31, 2**23, TOKEN_BYTES * 256, 0, 2**24))
    with pytest.raises(EngineError, match="the context length is 256 tokens") as caught:
        driven.submit(0, STORY + " please" * 300)
    assert caught.value.code == "context_length_exceeded"
    driven.submit(1, "Say hello.")
    driven.run()
    assert driven.text(1) == SCRIPTS["Say hello."]
    driven.engine.close()
