"""Has each model's `warm_prompts` taken in after a load, and again when its cache was cleared.

`Warmer` owns one task for each model whose engine is being told. The engine takes the prompts in
when no call wants it, one at a time, and gives way to calls: so this takes no lease, keeps no model
from being evicted, and is no use of it. What an engine does not take is logged and nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from engines import wire
from gateway.errors import GatewayError
from gateway.registry.find import Model
from gateway.registry.warm import WarmPrompt
from gateway.supervisor.tasks import Tasks

log = logging.getLogger("gateway.warm")

TELL_S = 60.0
"""How long an engine has to take one prompt's messages; taking the prompt in comes later."""

Make = Callable[[int, str], wire.Ask]
AskEngine = Callable[[str, Make], asyncio.Future[wire.Answer] | None]
"""Asks the engine of a model by name; None when that is not ready."""


class Warmer:
    """Tells engines which prompts to take in."""

    def __init__(self, tasks: Tasks, ask: AskEngine) -> None:
        self._tasks = tasks
        self._ask = ask
        self._telling: dict[str, asyncio.Task[None]] = {}

    def schedule(self, model: Model) -> bool:
        """Tells the engine of a ready model; False when there is nothing to tell."""
        name = model.entry.name
        if (before := self._telling.pop(name, None)) is not None:
            before.cancel()
        if not model.warm:
            return False
        task = self._tasks.supervised(f"warming {name}", self._tell(model), lambda _: None)
        self._telling[name] = task
        task.add_done_callback(partial(self._told, name))
        return True

    def _told(self, name: str, task: asyncio.Task[None]) -> None:
        if self._telling.get(name) is task:
            del self._telling[name]

    async def _tell(self, model: Model) -> None:
        name, tokens, taken = model.entry.name, 0, 0
        for prompt in model.warm:
            make = partial(_question, prompt, model)
            try:
                answer = self._ask(name, make)
                if answer is None:
                    return  # it has gone meanwhile; its next load warms it
                async with asyncio.timeout(TELL_S):
                    counted = await answer
            except (GatewayError, TimeoutError) as error:
                why = error or f"no answer within {TELL_S:g} s"
                log.warning("model %s: a warm prompt is left out: %s", name, why)
                continue
            if isinstance(counted, wire.Counted):
                tokens, taken = tokens + counted.tokens, taken + 1
        log.info("model %s: %d warm prompts with %d tokens are taken in", name, taken, tokens)


def _question(prompt: WarmPrompt, model: Model, question_id: int, path: str) -> wire.Ask:
    kwargs = model.entry.chat_template_kwargs
    return wire.Warm(question_id, path, prompt.messages, kwargs, prompt.tools)
