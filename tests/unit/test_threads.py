"""Work beside the loop: what comes back, and what does not keep anybody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from gateway.threads import in_thread

pytestmark = pytest.mark.anyio


async def test_what_it_returns_and_what_it_raises() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


async def test_who_stops_waiting_leaves_it_behind() -> None:
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(30)
        over.set()

    waiting = asyncio.ensure_future(in_thread(work))
    assert await in_thread(begun.wait, 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    assert await in_thread(over.wait, 30)


def test_a_process_does_not_wait_for_it_at_its_end() -> None:
    code = (
        "import asyncio, threading\n"
        "from gateway.threads import in_thread\n"
        "async def main():\n"
        "    asyncio.ensure_future(in_thread(threading.Event().wait))\n"
        "    await in_thread(int)\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
