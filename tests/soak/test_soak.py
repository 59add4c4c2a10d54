"""The long versions, run by `make soak`: the same code as in `make test`, for longer."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.harness.chaos import withstand
from tests.harness.cycles import compared, held
from tests.harness.daemon import Daemon, daemon, registry, reply, scripted

pytestmark = pytest.mark.anyio

CHAOS_S = float(os.environ.get("CHAOS_SECONDS", "600"))
CYCLES = int(os.environ.get("CYCLES", "200"))
STREAM_TOKENS = int(os.environ.get("STREAM_TOKENS", "20000"))

STREAMS = 20
TOKENS_PER_S = 100


@pytest.mark.timeout(CHAOS_S + 300)
async def test_chaos(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(10**6))
    print(f"\nCHAOS_SEED={seed}")  # noqa: T201  what replays this run
    print(await withstand(seed, CHAOS_S, tmp_path))  # noqa: T201


@pytest.mark.timeout(120 + 5 * CYCLES)
async def test_cycles(tmp_path: Path) -> None:
    print(f"\n{await compared(warm=20, total=CYCLES, folder=tmp_path)}")  # noqa: T201


@pytest.mark.timeout(120 + 4 * STREAM_TOKENS / TOKENS_PER_S)
async def test_long_streams(tmp_path: Path) -> None:
    """Many streams for minutes: every word arrives, and what is held does not grow with them."""
    model = scripted("a", tokens_per_s=TOKENS_PER_S, deltas=STREAM_TOKENS, max_concurrency=STREAMS)
    with daemon(registry(model), tmp_path) as gateway:
        quarter = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(_stream(gateway, quarter)) for _ in range(STREAMS)]
            await quarter.wait()
            early = held(gateway.pid)
        late = held(gateway.pid)
        figures = f"at a quarter: {early}; at the end: {late}"
        assert all(task.result() for task in streams)
        assert not late.grown_since(early), figures
        assert (await gateway.model("a"))["leases"] == 0
    print(f"\n{figures}")  # noqa: T201


async def _stream(gateway: Daemon, quarter: asyncio.Event) -> bool:
    """Reads one to its end; `quarter` is set when a quarter of it is there."""
    async with gateway.stream("a") as stream:
        while await stream.next() is not None:
            if len(stream.frames) > STREAM_TOKENS / 4:
                quarter.set()
    stream.assert_complete(reply(STREAM_TOKENS))
    return stream.done
