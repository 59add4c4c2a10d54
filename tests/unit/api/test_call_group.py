"""Several calls read as one: choices numbered on, usage added up, one end."""

from __future__ import annotations

import asyncio

import pytest

from engines import wire
from gateway.api.call_group import CallGroup
from gateway.errors import EngineCrashed
from gateway.supervisor.call import Call, CallFailed, CallItem, ClientLeft

pytestmark = pytest.mark.anyio

TIMEOUT_S = 30.0


def group_of(n: int = 2) -> tuple[Call, Call, CallGroup]:
    first, second = Call(1, "m", b""), Call(2, "m", b"")
    return first, second, CallGroup([first, second], n)


def finished(call_id: int, prompt_tokens: int, completion_tokens: int) -> wire.Finished:
    usage = wire.Usage(prompt_tokens, completion_tokens, cached_tokens=1, reasoning_tokens=2)
    return wire.Finished(call_id, usage, wire.Timings())


async def batch(group: CallGroup) -> list[CallItem]:
    return await group.batch(asyncio.get_running_loop().time() + TIMEOUT_S)


async def test_choices_are_numbered_in_the_order_of_the_calls() -> None:
    first, second, group = group_of(n=2)
    second.push(wire.TextDelta(2, 0, "c"))
    second.push(wire.ToolCallStart(2, 1, 0, "call", "f"))
    first.push(wire.TextDelta(1, 1, "b"))
    first.push(wire.ChoiceFinished(1, 1, "stop"))
    assert await batch(group) == [
        wire.TextDelta(1, 1, "b"),
        wire.ChoiceFinished(1, 1, "stop"),
        wire.TextDelta(2, 2, "c"),
        wire.ToolCallStart(2, 3, 0, "call", "f"),
    ]


async def test_it_ends_once_with_the_usage_of_all() -> None:
    first, second, group = group_of()
    second.push(finished(2, 10, 3))
    assert await group.batch(asyncio.get_running_loop().time()) == []
    first.push(wire.TextDelta(1, 0, "a"))
    first.push(finished(1, 20, 4))
    text, end = await batch(group)
    assert text == wire.TextDelta(1, 0, "a")
    assert isinstance(end, wire.Finished)
    assert end.usage == wire.Usage(30, 7, cached_tokens=2, reasoning_tokens=4)


@pytest.mark.parametrize("number", [0, 1])
async def test_any_call_wakes_the_reader(number: int) -> None:
    first, second, group = group_of()
    waiting = asyncio.ensure_future(batch(group))
    await asyncio.sleep(0)
    assert not waiting.done()
    (first, second)[number].push(wire.Started(number + 1, 5))
    assert await waiting == [wire.Started(number + 1, 5)]


async def test_an_end_that_is_not_the_last_is_no_news() -> None:
    first, second, group = group_of()
    waiting = asyncio.ensure_future(batch(group))
    await asyncio.sleep(0)
    second.push(finished(2, 10, 3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    first.push(wire.Started(1, 5))
    assert await waiting == [wire.Started(1, 5)]


async def test_silence_ends_with_the_deadline() -> None:
    *_, group = group_of()
    assert await group.batch(asyncio.get_running_loop().time()) == []


async def test_what_ends_one_call_is_passed_on() -> None:
    first, second, group = group_of()
    error = EngineCrashed("killed")
    second.fail(error)
    first.push(ClientLeft())
    left, failed = await batch(group)
    assert isinstance(left, ClientLeft)
    assert failed == CallFailed(error)
