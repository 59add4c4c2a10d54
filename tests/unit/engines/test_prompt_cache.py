"""The prompt cache keeps to its bytes, gives copies, and always leaves a token to feed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.prompt_cache import MIN_REUSED_TOKENS, PromptCache

PROMPT = list(range(100, 120))


@dataclass
class Layer:
    """Stands for one layer's cache: `held` tokens."""

    held: int
    nbytes: int = 1000
    trimmable: bool = True
    start_position: int = 0

    def is_trimmable(self) -> bool:
        return self.trimmable

    def trim(self, count: int) -> int:
        self.held -= count
        return count


def cache(limit: int = 10**6) -> tuple[PromptCache, list[Any]]:
    evaluated: list[Any] = []
    return PromptCache(limit, evaluated.append), evaluated


def layers(tokens: list[int], nbytes: int = 1000, trimmable: bool = True) -> list[Layer]:
    return [Layer(len(tokens), nbytes, trimmable)]


@pytest.mark.parametrize(
    ("stored", "trimmable", "prompt", "usable"),
    [
        (PROMPT, True, PROMPT, 19),  # an exact hit leaves the last token
        (PROMPT, True, [*PROMPT, 1, 2], 20),
        (PROMPT, True, [*PROMPT[:12], 7, 7], 12),
        (PROMPT, True, PROMPT[:12], 11),
        (PROMPT, True, [7, *PROMPT], 0),
        (PROMPT, True, [*PROMPT[: MIN_REUSED_TOKENS - 1], 7], 0),
        (PROMPT, True, [], 0),
        (PROMPT, False, [*PROMPT, 1], 20),
        (PROMPT, False, PROMPT, 0),
        (PROMPT, False, PROMPT[:12], 0),
        (PROMPT, False, [*PROMPT[:12], 7, 7], 0),
    ],
)
def test_what_is_usable(stored: list[int], trimmable: bool, prompt: list[int], usable: int) -> None:
    prompts, _ = cache()
    prompts.store(stored, layers(stored, trimmable=trimmable))
    found, count = prompts.fetch(prompt)
    assert count == usable
    assert (found is None) == (usable == 0)
    if found is not None:
        assert found[0].held == usable


def test_a_fetched_copy_leaves_the_entry_alone() -> None:
    prompts, _ = cache()
    prompts.store(PROMPT, layers(PROMPT))
    first, _ = prompts.fetch(PROMPT)
    second, _ = prompts.fetch([*PROMPT, 1])
    assert first is not None
    assert second is not None
    assert (first[0].held, second[0].held) == (19, 20)


def test_fetching_makes_an_entry_young() -> None:
    prompts, _ = cache(limit=2500)
    one, two, three = ([n] * 10 for n in (1, 2, 3))
    prompts.store(one, layers(one))
    prompts.store(two, layers(two))
    assert prompts.fetch([*one, 9])[1] == 10
    prompts.store(three, layers(three))
    assert prompts.fetch([*one, 9])[1] == 10
    assert prompts.fetch([*two, 9])[1] == 0


def test_a_longer_entry_replaces_its_beginnings() -> None:
    prompts, _ = cache()
    prompts.store(PROMPT[:10], layers(PROMPT[:10]))
    prompts.store(PROMPT, layers(PROMPT))
    prompts.store(PROMPT[:15], layers(PROMPT[:15]))
    assert prompts.stats().entries == 1
    assert prompts.fetch([*PROMPT, 1])[1] == 20


def test_entries_that_cannot_be_trimmed_stay_side_by_side() -> None:
    prompts, _ = cache()
    for length in (10, 20):
        prompts.store(PROMPT[:length], layers(PROMPT[:length], trimmable=False))
    assert prompts.stats().entries == 2
    assert prompts.fetch([*PROMPT[:10], 7])[1] == 10


def test_too_large_is_not_kept_and_not_evaluated() -> None:
    prompts, evaluated = cache(limit=500)
    prompts.store(PROMPT, layers(PROMPT))
    assert (prompts.nbytes, prompts.stats().entries, evaluated) == (0, 0, [])


def test_kept_entries_are_evaluated() -> None:
    prompts, evaluated = cache()
    kept = layers(PROMPT)
    prompts.store(PROMPT, kept)
    assert evaluated == [kept]


def test_a_lower_limit_shrinks_at_once() -> None:
    prompts, _ = cache()
    for n in range(5):
        prompts.store([n] * 10, layers([n] * 10))
    prompts.set_limit(2500)
    assert prompts.stats().entries == 2
    prompts.set_limit(0)
    assert (prompts.nbytes, prompts.stats().entries) == (0, 0)


def test_counters() -> None:
    prompts, _ = cache()
    assert prompts.fetch(PROMPT) == (None, 0)
    prompts.store(PROMPT, layers(PROMPT))
    prompts.fetch(PROMPT)
    prompts.fetch([*PROMPT, 1])
    stats = prompts.stats()
    assert (stats.hits, stats.misses, stats.tokens_saved) == (2, 1, 39)


@given(
    limit=st.integers(0, 5000),
    stores=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=24),
            st.integers(0, 2000),
            st.booleans(),
        ),
        max_size=12,
    ),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=24),
)
def test_never_over_the_limit_and_never_the_whole_prompt(
    limit: int, stores: list[tuple[list[int], int, bool]], prompt: list[int]
) -> None:
    prompts, _ = cache(limit)
    for tokens, nbytes, trimmable in stores:
        prompts.store(tokens, layers(tokens, nbytes, trimmable))
        assert prompts.nbytes <= limit
    found, usable = prompts.fetch(prompt)
    assert usable < len(prompt)
    if found is not None:
        assert found[0].held == usable
        assert any(tokens[:usable] == prompt[:usable] for tokens, _, _ in stores)


def test_a_chunked_layer_that_has_forgotten_counts_as_a_whole() -> None:
    prompts, _ = cache()
    chunked = layers(PROMPT)
    chunked[0].start_position = 4
    prompts.store(PROMPT, chunked)
    assert prompts.fetch(PROMPT) == (None, 0)
    assert prompts.fetch([*PROMPT, 1])[1] == 20


def test_evictions_are_counted_and_told() -> None:
    told: list[int] = []
    prompts = PromptCache(2500, lambda layers: None, lambda entry: told.append(entry.length))
    for length in (10, 11, 12):
        prompts.store([length] * length, layers([length] * length))
    assert told == [10]
    assert prompts.stats().evictions == 1
    assert prompts.clear(lambda key: len(key) == 44) == (1, 1044)
    assert prompts.stats().evictions == 1


def test_looking_is_no_use() -> None:
    prompts, _ = cache()
    prompts.store(PROMPT, layers(PROMPT))
    assert prompts.usable([*PROMPT, 1]) == 20
    assert prompts.fetch([*PROMPT, 1], counted=False)[1] == 20
    stats = prompts.stats()
    assert (stats.hits, stats.misses, stats.tokens_saved) == (0, 0, 0)
