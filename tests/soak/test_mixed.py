"""Every kind of model at once, for long: scripted ones for minutes, real ones for many visits."""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path

import pytest

from tests.harness.cycles import MIB, held
from tests.harness.daemon import daemon, registry
from tests.harness.kinds import BUDGET_GB, SCRIPTED, scripted_questions
from tests.harness.mixed import Clients, emptied, plan
from tests.harness.observe import GIB
from tests.real.test_kinds import withstand

pytestmark = pytest.mark.anyio

SECONDS = float(os.environ.get("MIXED_SECONDS", "600"))
REAL_VISITS = int(os.environ.get("MIXED_VISITS", "120"))
VISITS, PER_S = 100, 8.0
REAL_PER_S = 0.15
"""What speaks and what listens take many seconds of a slow CPU, and nobody waits for ever."""

WARM_ROUNDS = 3
RSS_SLACK = 8 * MIB
"""The last lines of the log, of which 4 MiB are kept, and what allocators and threads keep."""


def seeds() -> random.Random:
    """What replays a run is printed."""
    seed = int(os.environ.get("MIXED_SEED") or random.randrange(10**6))
    print(f"\nMIXED_SEED={seed}")  # noqa: T201
    return random.Random(seed)


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("strategy", ["wait_then_fail", "preempt"])
async def test_scripted_models(strategy: str, tmp_path: Path) -> None:
    """Round after round; between them the gateway is empty, and holds no more than it did."""
    drawn, questions = seeds(), scripted_questions()
    policy = {"strategy": strategy, "wait_timeout_s": 90}
    document = registry(
        *SCRIPTED.values(), budget_gb=BUDGET_GB, preempt_grace_s=0.05, contention_policy=policy
    )
    with daemon(document, tmp_path) as gateway:
        clients = Clients(gateway, questions)
        until, warm, late = time.monotonic() + SECONDS / 2, held(gateway.pid), held(gateway.pid)
        for number in itertools.count(1):
            seed = drawn.randrange(10**6)
            report = await clients.play(plan(seed, list(questions), VISITS, PER_S))
            await emptied(gateway)
            assert report.faults == [], f"seed {seed}: {report}"
            assert report.peak_bytes <= BUDGET_GB * GIB
            late = held(gateway.pid)
            if number == WARM_ROUNDS:
                warm = late
            if number > WARM_ROUNDS and time.monotonic() >= until:
                break
        assert "Traceback" not in gateway.log, gateway.log[-5000:]
    figures = f"{strategy}: {clients.report}; after {WARM_ROUNDS} rounds {warm}; at the end {late}"
    assert late.rss <= warm.rss + RSS_SLACK, figures
    assert late.descriptors <= warm.descriptors, figures
    assert late.zombies == 0, figures
    print(figures)  # noqa: T201


@pytest.mark.timeout(300 + 30 * REAL_VISITS)
async def test_real_models(tmp_path: Path) -> None:
    seed = seeds().randrange(10**6)
    print(await withstand(tmp_path, seed, REAL_VISITS, REAL_PER_S))  # noqa: T201
