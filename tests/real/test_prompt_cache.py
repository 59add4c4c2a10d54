"""Prompts seen before are not computed again, and the answer is the one of a cold run.

What is computed is counted at the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engines.text.engine
from engines import wire
from engines.text.engine import TextEngine
from engines.text.model import LoadedModel, load
from tests.fixtures.make_models import make
from tests.real.small_models import CONFIGS, make_small

LIMITS = wire.Limits(2**31, 2**23, 2**28, 2**27, 2**24)
GREEDY = wire.Sampling(temperature=0.0)
STEP = 64

SYSTEM = {"role": "system", "content": "You are a careful helper. " + "Be brief and kind. " * 12}
LONG = " ".join(f"Point {number} of the list is about the sea." for number in range(100))


class Counting:
    """A model that counts the tokens it is fed, the dead ones of padding included."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokens = 0

    def __call__(self, inputs: Any, cache: Any = None) -> Any:
        self.tokens += inputs.size
        return self.model(inputs, cache=cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Driven:
    """An engine whose model counts, and everything it emitted."""

    def __init__(
        self,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        limits: wire.Limits = LIMITS,
        *,
        alone: bool = False,
        **spec: Any,
    ) -> None:
        """With `alone` one row runs at a time, as for caches that cannot be batched."""

        def counting(given: wire.EngineSpec, report: Any) -> LoadedModel:
            loaded = load(given, report)
            self.model = Counting(loaded.model)
            batchable = loaded.batchable and not alone
            return replace(loaded, model=self.model, batchable=batchable)

        monkeypatch.setattr(engines.text.engine, "load", counting)
        self.events: list[Any] = []
        given = wire.EngineSpec("t", "text", path=str(path), prefill_step_size=STEP, **spec)
        self.engine = TextEngine(given, limits, self.events.append)
        self.engine.load(lambda loading: None)

    def submit(self, messages: list[dict[str, Any]], call_id: int = 0, **options: Any) -> None:
        options.setdefault("max_tokens", 6)
        parsers = wire.Parsers(None, None)
        request = wire.Generate(call_id, messages, sampling=GREEDY, parsers=parsers, **options)
        self.engine.submit(request)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(2000):
            if self.engine.busy and not until():
                self.engine.step()
                if isinstance(self.events[-1] if self.events else None, wire.WantTurn):
                    self.engine.take_turn()
            else:
                return
        raise AssertionError("it goes on for ever")

    def ask(self, *messages: dict[str, Any], **options: Any) -> tuple[str, wire.Usage, int]:
        """The answer, its usage, and how many tokens the model was fed for the prompt."""
        self.events.clear()
        before = self.model.tokens
        self.submit(list(messages), **options)
        self.run()
        finished = self.one(wire.Finished)
        text = "".join(e.text for e in self.events if isinstance(e, wire.TextDelta))
        # Generation is one step ahead of what it shows, and the first token feeds the last of
        # the prompt.
        decoded = finished.usage.completion_tokens
        return text, finished.usage, self.model.tokens - before - decoded

    def one(self, kind: type[Any]) -> Any:
        (event,) = [event for event in self.events if isinstance(event, kind)]
        return event


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {name: make_small(name, root) for name in CONFIGS}
    return {**made, "plain": make("random-wander", root)}


@pytest.fixture(params=["plain", "hybrid", "windowed"])
def path(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


@pytest.fixture
def driven(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    driven = Driven(path, monkeypatch)
    yield driven
    driven.engine.close()


@pytest.fixture
def cold(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    """The same model without a prompt cache."""
    driven = Driven(path, monkeypatch, replace_cache(LIMITS, 0))
    yield driven
    driven.engine.close()


def replace_cache(limits: wire.Limits, nbytes: int) -> wire.Limits:
    return wire.Limits(
        limits.charge_bytes, limits.weights_bytes, limits.kv_bytes, nbytes, limits.mlx_cache_bytes
    )


def test_a_shared_prefix_of_a_thousand_tokens_is_computed_once(
    driven: Driven, cold: Driven
) -> None:
    system = {"role": "system", "content": LONG}
    _, first, fed = driven.ask(system, user("What is the first point?"))
    assert first.prompt_tokens > 1000
    assert first.cached_tokens == 0
    assert fed >= first.prompt_tokens - 1
    text, second, fed = driven.ask(system, user("Say something about the last one."))
    assert second.cached_tokens > 1000
    assert 0 <= fed - (second.prompt_tokens - second.cached_tokens) <= 1
    assert text == cold.ask(system, user("Say something about the last one."))[0]
    assert driven.engine.prompt_cache().tokens_saved == second.cached_tokens


def test_a_second_turn_computes_what_is_new(driven: Driven, cold: Driven) -> None:
    talk = [SYSTEM, user("What about the sea? " * 4)]
    answer, first, _ = driven.ask(*talk)
    talk += [said(answer), user("And then?")]
    text, second, fed = driven.ask(*talk)
    assert second.cached_tokens > first.prompt_tokens - 8
    assert 0 <= fed - (second.prompt_tokens - second.cached_tokens) <= 1
    assert text == cold.ask(*talk)[0]


def test_rows_that_run_alone_keep_their_boundaries_too(
    path: Path, cold: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven(path, monkeypatch, alone=True)
    driven.ask(SYSTEM, user("One question."))
    talk = [SYSTEM, user("Another matter, at length. " * 3)]
    text, usage, fed = driven.ask(*talk)
    assert usage.cached_tokens > 40
    assert -1 <= fed - (usage.prompt_tokens - usage.cached_tokens) <= 1
    assert text == cold.ask(*talk)[0]
    driven.engine.close()


def test_the_same_prompt_again_feeds_its_end_alone(driven: Driven, cold: Driven) -> None:
    talk = [SYSTEM, user("Tell me of the sea.")]
    first, _, _ = driven.ask(*talk)
    second, usage, _ = driven.ask(*talk)
    assert usage.prompt_tokens - 8 < usage.cached_tokens < usage.prompt_tokens
    assert first == second == cold.ask(*talk)[0]


def test_prompts_that_part_share_what_they_have_in_common(driven: Driven, cold: Driven) -> None:
    driven.ask(SYSTEM, user("One question."))
    talk = [SYSTEM, user("Another matter, at length. " * 3)]
    text, usage, _ = driven.ask(*talk)
    assert usage.cached_tokens > 40
    assert text == cold.ask(*talk)[0]
    assert driven.ask(user("No system prompt."))[1].cached_tokens < 16


def test_what_a_cancelled_call_computed_serves_the_next(driven: Driven, cold: Driven) -> None:
    talk = [{"role": "system", "content": LONG}, user("Well?")]
    driven.submit(talk, call_id=7)
    driven.run(
        until=lambda: any(
            isinstance(event, wire.PromptProgress) and event.done_tokens >= 3 * STEP
            for event in driven.events
        )
    )
    driven.engine.cancel(7)
    text, usage, fed = driven.ask(*talk)
    assert usage.cached_tokens >= 3 * STEP
    assert 0 <= fed - (usage.prompt_tokens - usage.cached_tokens) <= 1
    assert text == cold.ask(*talk)[0]


def test_what_is_kept_of_prompts_taken_in_together_is_right(driven: Driven, cold: Driven) -> None:
    talks = [
        [{"role": "system", "content": f"{number} agents. " * 30 * number}, user("Well? " * 9)]
        for number in (1, 2)
    ]
    for number, talk in enumerate(talks):
        driven.submit(talk, call_id=number)
    driven.run()
    for talk in talks:
        again = [talk[0], user("Another question.")]
        text, usage, _ = driven.ask(*again)
        assert usage.cached_tokens > 60
        assert text == cold.ask(*again)[0]
        text, usage, _ = driven.ask(*talk)
        assert usage.cached_tokens > usage.prompt_tokens - 8
        assert text == cold.ask(*talk)[0]


def test_choices_share_a_cached_prompt(driven: Driven, cold: Driven) -> None:
    talk = [SYSTEM, user("Tell me of the sea.")]
    driven.ask(*talk)
    text, usage, _ = driven.ask(*talk, n=3)
    assert usage.cached_tokens > usage.prompt_tokens - 8
    alone = cold.ask(*talk)[0]
    assert sorted(text) == sorted(alone * 3)


def test_prompts_without_messages_are_kept_too(driven: Driven, cold: Driven) -> None:
    _, first, _ = driven.ask(prompt=LONG[:600])
    text, second, _ = driven.ask(prompt=LONG[:600])
    assert second.cached_tokens == first.prompt_tokens - 1
    assert text == cold.ask(prompt=LONG[:600])[0]


def test_what_is_cleared_is_computed_again(driven: Driven) -> None:
    talk = [SYSTEM, user("Tell me of the sea.")]
    driven.ask(*talk)
    before = driven.engine.prompt_cache().entries
    kept = driven.engine.answer(wire.ClearCache(1, "", "nothing begins like this"))
    assert kept == wire.Cleared(1, 0, 0)
    prefix = "<|im_start|>system\nYou are a careful"
    cleared = driven.engine.answer(wire.ClearCache(2, "", prefix))
    assert isinstance(cleared, wire.Cleared)
    assert cleared.entries == before
    assert driven.engine.memory().prompt_cache_bytes == 0
    assert driven.ask(*talk)[1].cached_tokens == 0
    assert isinstance(driven.engine.answer(wire.ClearCache(3, "")), wire.Cleared)
    assert driven.engine.prompt_cache().entries == 0


# --- on disk ----------------------------------------------------------------------------------


def kept(folder: Path) -> wire.DiskCache:
    return wire.DiskCache(str(folder), "fingerprint", 2**26, 86400.0)


def test_a_prompt_outlasts_the_engine(
    path: Path, cold: Driven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = [{"role": "system", "content": LONG}, user("Well?")]
    first = Driven(path, monkeypatch, disk_cache=kept(tmp_path))
    answer, _, _ = first.ask(*talk)
    first.engine.close()
    second = Driven(path, monkeypatch, disk_cache=kept(tmp_path))
    assert second.engine.prompt_cache().disk_entries > 0
    text, usage, fed = second.ask(*talk)
    assert usage.cached_tokens > usage.prompt_tokens - 8
    assert 0 <= fed - (usage.prompt_tokens - usage.cached_tokens) <= 1
    assert text == answer == cold.ask(*talk)[0]
    assert second.engine.prompt_cache().disk_hits == 1
    assert second.engine.memory().prompt_cache_bytes <= LIMITS.prompt_cache_bytes
    second.engine.close()


def test_a_bad_file_costs_a_prefill_and_no_more(
    path: Path, cold: Driven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = [{"role": "system", "content": LONG}, user("Well?")]
    first = Driven(path, monkeypatch, disk_cache=kept(tmp_path))
    first.ask(*talk)
    first.engine.close()
    for file in tmp_path.iterdir():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    second = Driven(path, monkeypatch, disk_cache=kept(tmp_path))
    text, usage, _ = second.ask(*talk)
    assert (text, usage.cached_tokens) == (cold.ask(*talk)[0], 0)
    stats = second.engine.prompt_cache()
    assert stats.disk_bad_files > 0
    assert stats.disk_hits == 0
    second.engine.close()


def test_a_folder_that_cannot_be_used_is_no_reason_not_to_load(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file")
    driven = Driven(models["plain"], monkeypatch, disk_cache=kept(tmp_path / "taken"))
    assert driven.ask(SYSTEM, user("Well?"))[1].cached_tokens == 0
    assert driven.ask(SYSTEM, user("Well?"))[1].cached_tokens > 0
    assert driven.engine.background() is None
    driven.engine.close()


# --- warming ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "warm",
    [
        [SYSTEM],
        [SYSTEM, user("Hello. " * 10), said("Hello, what is it about?")],
        [SYSTEM, user("Hello. " * 10)],
    ],
    ids=["system", "history", "whole prompt"],
)
def test_a_warm_prompt_is_there_for_the_first_request(
    driven: Driven, cold: Driven, warm: list[dict[str, Any]]
) -> None:
    counted = driven.engine.answer(wire.Warm(1, "", warm))
    assert isinstance(counted, wire.Counted)
    assert (driven.engine.running, driven.engine.waiting, driven.engine.busy) == (0, 0, True)
    driven.run()
    talk = warm if warm[-1]["role"] == "user" else [*warm, user("Tell me of the sea.")]
    text, usage, fed = driven.ask(*talk)
    assert usage.cached_tokens == counted.tokens > 40
    assert 0 <= fed - (usage.prompt_tokens - usage.cached_tokens) <= 1
    assert text == cold.ask(*talk)[0]
    stats = driven.engine.prompt_cache()
    assert (stats.hits, stats.misses) == (1, 0)


def test_a_call_goes_before_warming_which_goes_on_afterwards(driven: Driven) -> None:
    warm = [{"role": "system", "content": LONG}]
    counted = driven.engine.answer(wire.Warm(1, "", warm))
    assert isinstance(counted, wire.Counted)
    before = driven.model.tokens
    driven.engine.step()
    if driven.model.tokens == before:  # a long prompt waits for its turn first
        driven.engine.take_turn()
        driven.engine.step()
    assert 0 < driven.model.tokens - before < counted.tokens
    began = len(driven.events)
    driven.submit([user("Quick!")], call_id=3)
    while not any(isinstance(event, wire.Finished) for event in driven.events[began:]):
        driven.engine.step()
    assert driven.engine.busy
    fed = driven.model.tokens
    driven.run()
    assert driven.model.tokens - fed <= counted.tokens  # not from the beginning
    _, usage, _ = driven.ask(*warm, user("Now then."))
    assert usage.cached_tokens == counted.tokens


def test_a_warm_prompt_that_cannot_be_is_refused(driven: Driven) -> None:
    with pytest.raises(engines.base.EngineError, match="context length"):
        driven.engine.answer(wire.Warm(1, "", [user("sea " * 40_000)]))
    for number in range(64):
        driven.engine.answer(wire.Warm(number, "", [SYSTEM]))
    with pytest.raises(engines.base.EngineError, match="64 prompts wait"):
        driven.engine.answer(wire.Warm(65, "", [SYSTEM]))
