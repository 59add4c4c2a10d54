"""Everything at once, from a seed: nothing hangs, nothing leaks, nothing is cut without a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.chaos import plan, withstand

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("CHAOS_SEED", "20"))
SECONDS = 45.0


async def test_chaos(tmp_path: Path) -> None:
    print(f"\nCHAOS_SEED={SEED}")  # noqa: T201  what replays this run
    print(await withstand(SEED, SECONDS, tmp_path))  # noqa: T201


def test_a_seed_gives_one_plan() -> None:
    assert plan(SEED, SECONDS) == plan(SEED, SECONDS)
    assert plan(SEED, SECONDS) != plan(SEED + 1, SECONDS)
