"""Where prompts are cut, by a template that is spelled out here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from engines.base import EngineError
from engines.text.segments import always_trimmable, boundaries, cut, opening

SYSTEM = {"role": "system", "content": "a system prompt"}
ASKED = {"role": "user", "content": "a question"}


def encode(
    messages: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
) -> list[int]:
    """One token a character; a generation prompt of one more."""
    if kwargs.get("refuse") and len(messages) == 1:
        raise EngineError("invalid_request", "not these")
    text = "".join(f"<{m['role']}>{m['content']}</>" for m in messages)
    text = f"[{len(tools)}]" * bool(tools) + text
    return [*map(ord, text), *([0] if kwargs.get("add_generation_prompt", True) else [])]


def text(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("messages", "tools", "places"),
    [
        ([SYSTEM, ASKED], [], ["<system>a system prompt</><user>", "a question</>"]),
        ([SYSTEM, ASKED], [{}], ["[1]<system>a system prompt</><user>", "a question</>"]),
        ([ASKED], [], ["<user>a question</>"]),
        ([SYSTEM], [], ["<system>a system prompt</>"]),
        (
            [SYSTEM, ASKED, {"role": "assistant", "content": "yes"}, ASKED],
            [],
            [
                "<system>a system prompt</><user>",
                "a question</><assistant>yes</><user>a question</>",
            ],
        ),
    ],
)
def test_boundaries(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], places: list[str]
) -> None:
    prompt = encode(messages, {}, tools)
    found = boundaries(encode, prompt, messages, {}, tools)
    pieces = cut(prompt, found)
    assert [text(piece) for piece in pieces[:-1]] == places
    assert pieces[-1] == [0]


def test_a_prompt_that_is_no_conversation_keeps_all_but_its_end() -> None:
    prompt = list(range(100))
    assert boundaries(encode, prompt, [], {}) == (99,)
    assert boundaries(encode, prompt[:5], [], {}) == ()


def test_a_template_that_refuses_probes_is_left_alone() -> None:
    kwargs = {"refuse": True}
    prompt = encode([SYSTEM, ASKED], kwargs, ())
    assert boundaries(encode, prompt, [SYSTEM, ASKED], kwargs) == (len(prompt) - 1,)


def test_the_opening_is_a_beginning_whatever_the_user_says() -> None:
    common = opening(encode, [SYSTEM], {})
    for content in ("Zqqq", "7", "", "another"):
        whole = encode([SYSTEM, {"role": "user", "content": content}], {}, ())
        assert whole[: len(common)] == common
    assert text(common) == "<system>a system prompt</><user>"


@pytest.mark.parametrize(
    ("places", "pieces"),
    [
        ([], [[1, 2, 3, 4]]),
        ([2], [[1, 2], [3, 4]]),
        ([3, 1, 3], [[1], [2, 3], [4]]),
        ([-1, 0, 4, 9], [[1, 2, 3, 4]]),
    ],
)
def test_cut(places: list[int], pieces: list[list[int]]) -> None:
    assert cut([1, 2, 3, 4], places) == pieces


@pytest.mark.parametrize(
    ("layers", "always"),
    [
        ([KVCache(), KVCache()], True),
        ([CacheList(KVCache(), KVCache())], True),
        ([KVCache(), ArraysCache(2)], False),
        ([RotatingKVCache(8)], False),
        ([ChunkedKVCache(8)], False),
        ([CacheList(KVCache(), RotatingKVCache(8))], False),
    ],
)
def test_which_caches_can_be_cut_back_whatever_they_hold(layers: list[Any], always: bool) -> None:
    assert always_trimmable(layers) is always
