"""An engine whose work thread is stuck is found by its lack of progress, and replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.daemon import daemon, registry, reply, scripted

pytestmark = pytest.mark.anyio


async def test_a_stuck_engine_is_replaced_and_its_calls_are_told(tmp_path: Path) -> None:
    stuck = scripted("stuck", hang_after=5, deltas=50)
    steady = scripted("steady", tokens_per_s=20, deltas=80)
    document = registry(stuck, steady, hang_timeout_s=2.5, first_step_timeout_s=2.5)
    with daemon(document, tmp_path) as gateway:
        async with gateway.stream("steady") as spared:
            await spared.until_text()
            async with gateway.stream("stuck") as hit:
                while hit.text != reply(5):  # another call before that would say some of the five
                    assert await hit.next() is not None
                first = await gateway.until_model("stuck", state="ready")
                buffered = asyncio.create_task(gateway.chat("stuck"))
                await hit.rest()
            await spared.rest()
        assert hit.text == reply(5)
        assert "made no progress for 2.5 s" in hit.assert_failed("engine_hung")
        spared.assert_complete(reply(80))
        answer = await buffered
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_hung"
        assert "retry-after" in answer.headers

        assert (await gateway.chat("stuck", max_tokens=3)).status_code == 200
        second = await gateway.model("stuck")
        assert second["loads"] == 2
        assert second["pid"] != first["pid"]


async def test_a_long_silence_with_progress_is_no_hang(tmp_path: Path) -> None:
    slow = scripted("slow", prefill_s=5, deltas=2)
    document = registry(slow, hang_timeout_s=3, first_step_timeout_s=3)
    with daemon(document, tmp_path) as gateway:
        answer = await gateway.chat("slow")
        assert answer.json()["choices"][0]["message"]["content"] == reply(2)
        assert (await gateway.model("slow"))["loads"] == 1
