"""Several calls that answer one request, read as if they were one.

A request with several prompts is one call for each of them. The group numbers their choices in the
order of the prompts, adds up their usage, and is over when all of them are. It starts and ends
none of them: the exchange does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from engines import wire
from gateway.supervisor.call import Call, CallItem


class Source(Protocol):
    """Where an answer comes from: one call, or a group of them."""

    async def batch(self, deadline: float) -> list[CallItem]:
        """Every item at hand, in order, waiting for the first one until `deadline` (loop time).

        An empty list means that the deadline passed in silence.
        """


class CallGroup:
    """Calls with `n` choices each. A `Finished` comes once, at the end of everything."""

    def __init__(self, calls: Sequence[Call], n: int) -> None:
        self._calls = calls
        self._n = n
        self._running = len(calls)
        self._usage = wire.Usage(0, 0)
        self._loop = asyncio.get_running_loop()

    async def batch(self, deadline: float) -> list[CallItem]:
        """As `Source` says. Items of one call keep their order."""
        items = self._take()
        if items:
            await asyncio.sleep(0)  # for the reason that `Call.batch` names
            return items
        while not items:
            await self._wait(deadline)
            items = self._take()  # nothing, where all that came is an end that is not the last
            if self._loop.time() >= deadline:
                break
        return items

    async def _wait(self, deadline: float) -> None:
        reader: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_at(deadline, _wake, reader)
        for call in self._calls:
            call.read_by(reader)
        try:
            await reader
        finally:
            timer.cancel()
            for call in self._calls:
                call.read_by(None)

    def _take(self) -> list[CallItem]:
        return [
            item
            for number, call in enumerate(self._calls)
            for own in call.take()
            if (item := self._in_all(own, number * self._n)) is not None
        ]

    def _in_all(self, item: CallItem, first_choice: int) -> CallItem | None:
        """What one call's item is in the whole answer; nothing for an end that is not the last."""
        match item:
            case (
                wire.TextDelta()
                | wire.ReasoningDelta()
                | wire.ToolCallStart()
                | wire.ToolCallArguments()
                | wire.ChoiceFinished()
            ):
                return msgspec.structs.replace(item, choice=first_choice + item.choice)
            case wire.Finished():
                self._running -= 1
                self._usage = _sum(self._usage, item.usage)
                return None if self._running else msgspec.structs.replace(item, usage=self._usage)
            case _:
                return item


def _wake(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)


def _sum(one: wire.Usage, other: wire.Usage) -> wire.Usage:
    return wire.Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        one.cached_tokens + other.cached_tokens,
        one.reasoning_tokens + other.reasoning_tokens,
    )
