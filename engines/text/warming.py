"""Prompts that are put into the prompt cache ahead of the requests that begin with them.

They are taken in one at a time and only while no call wants the model; a call that comes ends the
one at hand, which goes on from there later. The work thread owns it, as it does the generator.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from engines import wire
from engines.base import EngineError
from engines.text.generator import Generator
from engines.text.sampling import sampler_for
from engines.text.tiers import PromptTiers
from engines.turns import PrefillTurn

MOST_PROMPTS = 64
"""Prompts that wait to be warmed."""

TURN_ID = -1
"""What the turn for long prefills knows it by; calls have positive ids."""

_NEXT = 0
"""Stands for the token after the prompt: a generator has to have one to come, and never sees it."""


class Warming:
    """At most one row of the generator is its own, and then there is no other."""

    def __init__(self, prompts: PromptTiers, turn: PrefillTurn) -> None:
        self._prompts = prompts
        self._turn = turn
        self._queue: deque[list[int]] = deque()
        self._uid: int | None = None
        self._stalled = False

    @property
    def busy(self) -> bool:
        """There is something to do now, and not only once the turn comes."""
        return bool(self._queue) and not self._stalled

    def add(self, tokens: list[int]) -> None:
        """Raises `EngineError` when very many wait already."""
        if len(self._queue) >= MOST_PROMPTS:
            raise EngineError("overloaded", f"{MOST_PROMPTS} prompts wait to be warmed already")
        self._queue.append(tokens)
        self._stalled = False

    def take_turn(self) -> None:
        self._stalled = False

    def step(self, generator: Generator) -> None:
        """Takes in one chunk of the first prompt. Raises what the model raises."""
        if self._uid is None:
            self._begin(generator)
        if self._uid is None:
            return
        for response in generator.next()[0]:
            done, total = response.progress
            if done >= total - 1:
                self._take_out(generator)
                self._queue.popleft()

    def pause(self, generator: Generator) -> None:
        """A call wants the model: what was computed is kept, the rest comes later."""
        if self._uid is not None:
            self._take_out(generator)
        self._turn.over(TURN_ID)
        self._stalled = False

    def lost(self) -> None:
        """The generator is gone, and the prompt at hand, which may be why, with it."""
        if self._uid is not None:
            self._uid = None
            self._queue.popleft()
        self._turn.over(TURN_ID)

    def clear(self) -> None:
        """Forgets all of them; the generator must be gone too."""
        self._uid = None
        self._queue.clear()

    def _begin(self, generator: Generator) -> None:
        while self._queue and self._uid is None:
            tokens = self._queue[0]
            left = len(tokens) - self._prompts.usable([*tokens, _NEXT])
            if not left or not self._prompts.limit:
                self._queue.popleft()
                continue
            if not self._turn.ready(TURN_ID, left):
                self._stalled = True
                return
            layers, cached = self._prompts.fetch([*tokens, _NEXT], counted=False)
            (self._uid,) = generator.insert_segments(
                [[[*tokens[cached:], _NEXT]]],
                max_tokens=[1],
                caches=[layers],
                all_tokens=[tokens[:cached]],
                samplers=[sampler_for(wire.Sampling(temperature=0.0))],
                logits_processors=[[]],
            )

    def _take_out(self, generator: Generator) -> None:
        """The cache of the row, as far as it has come, goes to the others."""
        assert self._uid is not None
        removed: dict[int, Any] = generator.remove([self._uid], return_prompt_caches=True)
        self._uid = None
        self._turn.over(TURN_ID)
        for layers, held in removed.values():
            if held:
                self._prompts.store(held, layers)
