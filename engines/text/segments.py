"""Where the prompts of models whose caches cannot be cut back are worth keeping.

A sliding window that has wrapped, or the state of a recurrent layer, stands for exactly the tokens
it has seen. So the cache is kept at the places where another prompt is likely to part from this
one: after the system prompt and tools, and after the last turn, before the model's own begins,
which a later prompt may render in another way. Pure but for the rendering it is given.

Any place is correct, as it is looked for in the tokens of the prompt itself; a bad one is no use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from engines.base import EngineError
from engines.text.prompt_cache import MIN_REUSED_TOKENS

Encode = Callable[
    [Sequence[Mapping[str, Any]], Mapping[str, Any], Sequence[Mapping[str, Any]]], list[int]
]
"""Messages, template arguments and tools to tokens, as `PromptEncoder.encode`."""

_PROBES = ("Zq", "7")
"""Contents with nothing in common; where their prompts part, that of any content may begin."""

_LEADING_ROLES = ("system", "developer")
_WINDOWS = ("max_size", "chunk_size")
"""Attributes of layers that forget their oldest tokens, and then cannot be cut back."""


def always_trimmable(layers: Iterable[Any]) -> bool:
    """Whether caches of such layers can be cut back whatever they hold; `layers` are empty."""
    for layer in layers:
        parts = getattr(layer, "caches", None)
        if parts is not None and not always_trimmable(parts):
            return False
        if not layer.is_trimmable() or any(hasattr(layer, name) for name in _WINDOWS):
            return False
    return True


def opening(
    encode: Encode,
    messages: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """The tokens that every prompt begins with in which a user's turn follows on `messages`.

    Raises `EngineError` when the template refuses them.
    """
    one, other = (
        encode([*messages, {"role": "user", "content": probe}], kwargs, tools) for probe in _PROBES
    )
    return one[: _common(one, other)]


def boundaries(
    encode: Encode,
    prompt: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[int, ...]:
    """Places in `prompt`, in tokens from its beginning, each of which leaves a token to feed."""
    leading = list(takewhile(lambda message: message.get("role") in _LEADING_ROLES, messages))
    try:
        head = _common(opening(encode, leading, kwargs, tools), prompt) if messages else 0
        tail = len(prompt) - (_generation_prompt(encode, prompt, kwargs) if messages else 0)
    except EngineError:  # a template may refuse what is no whole conversation
        head, tail = 0, len(prompt)
    places = {head, min(tail, len(prompt) - 1)}
    return tuple(sorted(place for place in places if MIN_REUSED_TOKENS <= place < len(prompt)))


def cut(tokens: Sequence[int], places: Iterable[int]) -> list[list[int]]:
    """`tokens` in pieces, none empty; places outside of them count for nothing."""
    inside = sorted({place for place in places if 0 < place < len(tokens)})
    starts = [0, *inside]
    return [list(tokens[a:b]) for a, b in zip(starts, [*inside, len(tokens)], strict=True)]


def _generation_prompt(encode: Encode, prompt: Sequence[int], kwargs: Mapping[str, Any]) -> int:
    """How many tokens at the end of `prompt` begin the model's turn; 0 when it cannot be told."""
    question = [{"role": "user", "content": _PROBES[0]}]
    asked = encode(question, kwargs, ())
    plain = encode(question, {**kwargs, "add_generation_prompt": False}, ())
    added = asked[len(plain) :]
    if not added or asked[: len(plain)] != plain or list(prompt[-len(added) :]) != added:
        return 0
    return len(added)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
