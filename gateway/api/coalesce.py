"""Fewer, larger events: deltas of one choice are joined until `interval` tokens are together.

Pure. An engine's delta counts as one token, or as many as it has log-probabilities. The first
delta of a choice goes out at once, so joining costs no time to the first token, and nothing is
ever sent after what it came before.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engines import wire
from gateway.supervisor.call import CallItem

Text = wire.TextDelta | wire.ReasoningDelta | wire.ToolCallArguments


class Coalescer:
    """Holds, for each choice, deltas of one kind that are still too few."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[int, list[Text]] = {}
        self._tokens: dict[int, int] = {}

    @property
    def holding(self) -> bool:
        return bool(self._held)

    def add(self, items: Sequence[CallItem]) -> list[CallItem]:
        """What is ready now that these items are there, in order."""
        ready: list[CallItem] = []
        for item in items:
            if isinstance(item, Text):
                ready += self._text(item)
            elif isinstance(item, wire.ToolCallStart | wire.ChoiceFinished):
                ready += self._release(item.choice)
                ready.append(item)
            else:
                ready += self.flush()
                ready.append(item)
        return ready

    def flush(self) -> list[CallItem]:
        """Everything that is held."""
        return [delta for choice in list(self._held) for delta in self._release(choice)]

    def _text(self, delta: Text) -> list[CallItem]:
        choice = delta.choice
        if choice not in self._tokens:
            self._tokens[choice] = 0
            return [delta]
        held = self._held.get(choice)
        ready = [] if held is None or _alike(held[0], delta) else self._release(choice)
        self._held.setdefault(choice, []).append(delta)
        self._tokens[choice] += _tokens(delta)
        if self._tokens[choice] >= self._interval:
            ready += self._release(choice)
        return ready

    def _release(self, choice: int) -> list[CallItem]:
        held = self._held.pop(choice, None)
        if held is None:
            return []
        self._tokens[choice] = 0
        return [held[0] if len(held) == 1 else _joined(held)]


def _tokens(delta: Text) -> int:
    if isinstance(delta, wire.TextDelta) and delta.logprobs is not None:
        return len(delta.logprobs)
    return 1


def _alike(one: Text, other: Text) -> bool:
    """Whether they can be one delta: the same kind, and pieces of the same call."""
    if isinstance(one, wire.ToolCallArguments) and isinstance(other, wire.ToolCallArguments):
        return one.index == other.index
    if isinstance(one, wire.TextDelta) and isinstance(other, wire.TextDelta):
        return (one.logprobs is None) == (other.logprobs is None)
    return type(one) is type(other)


def _joined(deltas: Sequence[Text]) -> Text:
    first, text = deltas[0], "".join(delta.text for delta in deltas)
    if isinstance(first, wire.TextDelta) and first.logprobs is not None:
        logprobs = tuple(
            token
            for delta in deltas
            if isinstance(delta, wire.TextDelta)
            for token in delta.logprobs or ()
        )
        return msgspec.structs.replace(first, text=text, logprobs=logprobs)
    return msgspec.structs.replace(first, text=text)
