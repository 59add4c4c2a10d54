"""A load that fails: whoever waits is told why, and its memory is free at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import daemon, registry, scripted

pytestmark = pytest.mark.anyio

STEPS = [
    ("error", "fail_loads makes load number 0 fail"),
    ("hang", "the load made no progress for 2 s"),
    ({"exit": 139}, "exited with code 139"),
]


@pytest.mark.parametrize(("step", "cause"), STEPS, ids=["error", "hang", "exit"])
async def test_every_waiter_is_told_the_cause_and_the_memory_is_free(
    tmp_path: Path, step: Any, cause: str
) -> None:
    broken = scripted("broken", load_s=0.5, fail_loads=[step])
    document = registry(broken, scripted("other"), budget_gb=1, load_timeout_s=2)
    with daemon(document, tmp_path) as gateway:
        waiters = [asyncio.create_task(gateway.chat("broken")) for _ in range(3)]
        await gateway.until_model("broken", waiting=3)
        for answer in await asyncio.gather(*waiters):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "load_failed")
            assert cause in error["message"]
            assert "retry-after" in answer.headers
        status = await gateway.status()
        assert status["memory"]["committed_bytes"] == 0
        assert gateway.engines() == []
        assert (await gateway.chat("other")).status_code == 200
        assert (await gateway.chat("broken")).status_code == 200  # one failure costs no wait
        assert (await gateway.model("broken"))["loads"] == 2


async def test_after_the_second_failure_in_a_row_there_is_a_wait(tmp_path: Path) -> None:
    with daemon(registry(scripted("broken", fail_loads=5)), tmp_path) as gateway:
        for _ in range(2):
            assert (await gateway.chat("broken")).json()["error"]["code"] == "load_failed"
        answer = await gateway.chat("broken")
        assert answer.status_code == 503
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        model = await gateway.model("broken")
        assert (model["state"], model["loads"]) == ("failed", 2)
        card = (await gateway.get("/v1/models/broken")).json()
        assert card["status"]["value"] == "error"
        assert "fail_loads" in card["status"]["reason"]


async def test_an_engine_that_talks_without_end_still_loads(tmp_path: Path) -> None:
    with daemon(registry(scripted("chatty", stderr_flood=True)), tmp_path) as gateway:
        assert (await gateway.chat("chatty")).status_code == 200
