"""The parent of every task that belongs to one engine or one request.

In a bare task group an exception in one engine's task would cancel the other engines and the
server. Here a task that fails is logged once and reported to its owner; nothing else notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("gateway.tasks")

CLOSE_TIMEOUT_S = 5.0


class Tasks:
    """Owns tasks until they end; `close` ends those that are left."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def supervised(
        self,
        name: str,
        coro: Coroutine[Any, Any, None],
        on_failure: Callable[[Exception], None],
    ) -> asyncio.Task[None]:
        """Runs `coro`; an exception is logged and given to `on_failure`, which must not raise."""
        task = asyncio.get_running_loop().create_task(_guarded(name, coro, on_failure), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # For one that was cancelled before its first step; for any other it does nothing.
        task.add_done_callback(lambda _: coro.close())
        return task

    async def close(self) -> None:
        """Cancels what still runs and waits for it, within bounds."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_TIMEOUT_S)


async def _guarded(
    name: str, coro: Coroutine[Any, Any, None], on_failure: Callable[[Exception], None]
) -> None:
    try:
        await coro
    except Exception as error:  # the boundary this module exists for
        log.exception("task %s failed", name)
        on_failure(error)
