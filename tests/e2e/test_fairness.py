"""Long prompts of several models take turns, and an operator can see whose turn it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.daemon import daemon, registry, scripted

pytestmark = pytest.mark.anyio

LONG = "word " * 600


async def test_turns_are_in_the_status_and_in_the_metrics(tmp_path: Path) -> None:
    models = (scripted("a", prefill_s=600, deltas=1), scripted("b", prefill_s=600, deltas=1))
    with daemon(registry(*models), tmp_path) as gateway:
        async with gateway.stream("a", LONG):
            await gateway.until(lambda status: status["prefill"]["holding"] == ["a"])
            async with gateway.stream("b", LONG):
                status = await gateway.until(lambda status: status["prefill"]["waiting"])
                expected = {"slots": 1, "holding": ["a"], "late": [], "waiting": ["b"]}
                assert status["prefill"] == expected
                assert (await gateway.model("b"))["leases"] == 1
            await gateway.until(lambda status: not status["prefill"]["waiting"])
        await gateway.until(lambda status: not status["prefill"]["holding"])
        page = (await gateway.get("/metrics")).text
    assert 'mlx_gateway_prefill_turn_wait_seconds_count{model="a"} 1.0' in page
