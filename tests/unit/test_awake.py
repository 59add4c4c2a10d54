"""The process that keeps a machine awake: there while calls run, and gone after them."""

from __future__ import annotations

import asyncio
import os
import sys

import psutil
import pytest

from gateway.awake import Awake, caffeinate

pytestmark = pytest.mark.anyio

TIMEOUT_S = 30
WAIT = (sys.executable, "-c", "import time; time.sleep(600)")


async def pid_after(awake: Awake, *, busy: bool) -> int | None:
    await awake.look(busy=busy)
    return awake.pid


async def test_it_lives_while_there_are_calls() -> None:
    awake = Awake(WAIT)
    assert await pid_after(awake, busy=False) is None
    pid = await pid_after(awake, busy=True)
    assert pid is not None
    assert await pid_after(awake, busy=True) == pid
    assert await pid_after(awake, busy=False) is None
    assert not psutil.pid_exists(pid)


async def test_one_that_ended_is_replaced() -> None:
    awake = Awake(WAIT)
    first = await pid_after(awake, busy=True)
    assert first is not None
    psutil.Process(first).terminate()
    async with asyncio.timeout(TIMEOUT_S):
        while await pid_after(awake, busy=True) == first:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)
    assert await pid_after(awake, busy=True) is not None
    await awake.close()
    assert await pid_after(awake, busy=False) is None


async def test_without_the_program_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    awake = Awake(("no-such-caffeinate",))
    await awake.look(busy=True)
    await awake.look(busy=True)
    assert awake.pid is None
    assert caplog.text.count("cannot keep this machine awake") == 1


def test_only_a_mac_needs_it() -> None:
    assert caffeinate("linux") == ()
    assert caffeinate("darwin") == ("caffeinate", "-i", "-w", str(os.getpid()))
