"""A call's mailbox: order, bounds, and who is woken when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from engines import wire
from gateway.errors import ClientTooSlow, EngineCrashed
from gateway.residency import Phase
from gateway.supervisor.call import (
    BUFFER_BYTES,
    MERGE_BYTES,
    Call,
    CallFailed,
    CallItem,
    ClientLeft,
    Granted,
)

pytestmark = pytest.mark.anyio

ID = 7
FINISHED = wire.Finished(ID, wire.Usage(1, 2), wire.Timings())


def delta(text: str, choice: int = 0) -> wire.TextDelta:
    return wire.TextDelta(ID, choice, text)


def text_of(items: Sequence[CallItem]) -> str:
    return "".join(item.text for item in items if isinstance(item, wire.TextDelta))


async def taken(call: Call) -> list[CallItem]:
    """What is there now; fails when nothing is."""
    items = await call.batch(asyncio.get_running_loop().time())
    assert items
    return items


async def test_items_come_out_in_the_order_they_went_in() -> None:
    call = Call(ID, "model", b"")
    granted = Granted()
    items: list[CallItem] = [
        *(Phase.ROOM, Phase.LOADING, granted, wire.PromptProgress(ID, 1, 2), wire.Started(ID, 2)),
        *(delta("a"), delta("b"), wire.ChoiceFinished(ID, 0, "stop"), FINISHED),
    ]
    for item in items:
        call.push(item)
    assert await taken(call) == items
    assert call.over


async def test_segments_count_with_all_that_they_hold() -> None:
    word = wire.Word("word", 0.0, 1.0)
    text = wire.Segment(ID, 0, 0.0, 1.0, "a" * (BUFFER_BYTES // 8))
    words = wire.Segment(ID, 1, 0.0, 1.0, "", words=(word,) * (BUFFER_BYTES // 900))
    call = Call(ID, "model", b"")
    for segment in (text, words, text, words):
        assert not call.overflowing
        call.push(segment)
    for _ in range(4):
        call.push(text)
    assert call.overflowing


async def test_nothing_comes_after_the_end() -> None:
    call = Call(ID, "model", b"")
    error = EngineCrashed("gone")
    call.fail(error)
    call.push(delta("late"))
    call.fail(EngineCrashed("again"))
    call.push(ClientLeft())
    assert await taken(call) == [CallFailed(error)]


async def test_a_reader_is_woken_by_the_first_item_and_finds_all_that_came_with_it() -> None:
    call = Call(ID, "model", b"")
    reader = asyncio.create_task(call.batch(asyncio.get_running_loop().time() + 60))
    await asyncio.sleep(0)
    call.push(delta("a"))
    call.push(delta("b"))
    assert await reader == [delta("a"), delta("b")]


async def test_silence_ends_at_the_deadline_with_an_empty_batch() -> None:
    call = Call(ID, "model", b"")
    loop = asyncio.get_running_loop()
    for _ in range(2):  # the second wait finds the timer of the first one spent
        deadline = loop.time() + 0.01
        assert await call.batch(deadline) == []
        assert loop.time() >= deadline


async def test_a_timer_left_over_from_an_earlier_wait_neither_wakes_early_nor_late() -> None:
    call = Call(ID, "model", b"")
    loop = asyncio.get_running_loop()
    for first_s, second_s in [(0.01, 0.03), (60, 0.01)]:
        reader = asyncio.create_task(call.batch(loop.time() + first_s))
        await asyncio.sleep(0)
        call.push(delta("a"))
        assert await reader == [delta("a")]
        deadline = loop.time() + second_s
        assert await call.batch(deadline) == []
        assert loop.time() >= deadline


async def test_no_deadline_is_no_deadline() -> None:
    call = Call(ID, "model", b"")
    reader = asyncio.create_task(call.batch(float("inf")))
    await asyncio.sleep(0)
    call.push(delta("a"))
    assert await reader == [delta("a")]


async def test_a_batch_that_is_there_lets_others_run_first() -> None:
    call = Call(ID, "model", b"")
    call.push(delta("a"))
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "other")
    await taken(call)
    assert ran == ["other"]


async def test_few_bytes_are_never_merged() -> None:
    call = Call(ID, "model", b"")
    for _ in range(10):
        call.push(delta("word "))
    assert len(await taken(call)) == 10


async def test_what_nobody_fetches_is_merged_by_choice_and_in_order() -> None:
    call = Call(ID, "model", b"")
    piece = "x" * 999 + " "
    for number in range(MERGE_BYTES // 500):
        call.push(delta(piece, choice=0 if number < 60 else 1))
    call.push(wire.ChoiceFinished(ID, 0, "stop"))
    call.push(delta("the end", choice=1))
    items = await taken(call)
    assert text_of(items) == piece * (MERGE_BYTES // 500) + "the end"
    assert len(items) < 70
    assert isinstance(items[-2], wire.ChoiceFinished)
    choices = [item.choice for item in items if isinstance(item, wire.TextDelta)]
    assert choices == sorted(choices)


async def test_tiny_deltas_cost_what_they_weigh_and_the_bound_holds() -> None:
    call = Call(ID, "model", b"")
    pushed = 0
    while not call.overflowing:
        call.push(delta("a word or two "))
        pushed += 1
    size = pushed * len("a word or two ")
    assert BUFFER_BYTES * 0.9 < size <= BUFFER_BYTES  # merged, it weighs hardly more than its text
    items = await taken(call)
    assert text_of(items) == "a word or two " * pushed
    assert not call.overflowing


async def test_log_probabilities_count_too() -> None:
    call = Call(ID, "model", b"")
    top = tuple((str(number), -1.0) for number in range(20))
    token = wire.TokenLogprob("x", -0.1, top)
    pushed = 0
    while not call.overflowing:
        call.push(wire.TextDelta(ID, 0, "x", (token,)))
        pushed += 1
    assert pushed < BUFFER_BYTES / (20 * 100)


async def test_an_overflow_replaces_everything_by_the_failure() -> None:
    call = Call(ID, "model", b"")
    call.push(delta("x" * (BUFFER_BYTES + 1)))
    assert call.overflowing
    call.overflow()
    assert call.over
    (item,) = await taken(call)
    assert isinstance(item, CallFailed)
    assert isinstance(item.error, ClientTooSlow)


async def test_an_overflow_after_the_end_takes_nothing_away() -> None:
    call = Call(ID, "model", b"")
    call.push(delta("a"))
    call.push(FINISHED)
    call.overflow()
    assert await taken(call) == [delta("a"), FINISHED]


async def test_an_abandoned_call_holds_and_takes_nothing() -> None:
    call = Call(ID, "model", b"")
    call.push(delta("a"))
    call.abandon()
    call.push(delta("b"))
    assert await call.batch(asyncio.get_running_loop().time()) == []
