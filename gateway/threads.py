"""Blocking work beside the event loop, in threads that nobody has to wait for.

`asyncio.to_thread` uses threads that the loop and the interpreter join at their end, so one that
reads a volume which has gone would keep the gateway from stopping. Who cancels the wait here leaves
the thread behind; what it returns is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns. Raises what it raises."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # nobody waits any more
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]  # a T where there is no error

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work(*args, **kwargs)
        except BaseException as raised:  # noqa: BLE001  it is raised again by who waits
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=run, name="beside the loop", daemon=True).start()
    return await outcome
