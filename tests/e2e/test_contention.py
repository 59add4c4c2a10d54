"""Two models and room for one: every policy, as clients see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.daemon import daemon, registry, reply, scripted

pytestmark = pytest.mark.anyio

ENDLESS = scripted("a", tokens_per_s=20, deltas=100_000)
SHORT = scripted("a", tokens_per_s=20, deltas=20)


def contended(a: dict[str, Any], strategy: str, **policy: float) -> dict[str, Any]:
    return registry(
        a,
        scripted("b"),
        budget_gb=1,
        preempt_grace_s=0.2,
        contention_policy={"strategy": strategy, **policy},
    )


def assert_no_room(answer: httpx.Response, strategy: str) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert error["code"] == "no_capacity"
    assert f"policy {strategy} " in error["message"]
    assert "In the way: 'a' (" in error["message"]
    assert "ready, 1 running call)" in error["message"]


async def test_fail_refuses_at_once(tmp_path: Path) -> None:
    with daemon(contended(SHORT, "fail"), tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            assert_no_room(await gateway.chat("b"), "fail")
            await stream.rest()
        stream.assert_complete(reply(20))
        assert (await gateway.chat("b")).status_code == 200  # nothing is in use any more


@pytest.mark.parametrize("strategy", ["wait", "wait_then_fail", "wait_then_preempt"])
async def test_waiting_ends_well_when_the_model_in_use_becomes_idle(
    tmp_path: Path, strategy: str
) -> None:
    with daemon(contended(SHORT, strategy), tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            waiter = asyncio.create_task(gateway.chat("b"))
            await gateway.until_model("b", waiting=1)
            await stream.rest()
        stream.assert_complete(reply(20))
        assert (await waiter).status_code == 200
        assert (await gateway.model("a"))["state"] == "unloaded"


@pytest.mark.parametrize("strategy", ["wait", "wait_then_fail"])
async def test_waiting_ends_with_a_refusal(tmp_path: Path, strategy: str) -> None:
    with daemon(contended(ENDLESS, strategy, wait_timeout_s=0.5), tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            assert_no_room(await gateway.chat("b"), strategy)
            assert await stream.next() is not None
        assert stream.error is None
        assert (await gateway.model("b"))["loads"] == 0


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [("preempt", {}), ("wait_then_preempt", {"preempt_after_s": 0.3})],
    ids=["preempt", "wait_then_preempt"],
)
async def test_preemption_ends_running_calls_in_an_orderly_way(
    tmp_path: Path, strategy: str, policy: dict[str, float]
) -> None:
    with daemon(contended(ENDLESS, strategy, **policy), tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            buffered = asyncio.create_task(gateway.chat("a"))
            await gateway.until_model("a", leases=2)
            winner = asyncio.create_task(gateway.chat("b"))
            await stream.rest()
        assert "make room for model 'b'" in stream.assert_failed("preempted")
        victim = await buffered
        assert (victim.status_code, victim.json()["error"]["code"]) == (503, "preempted")
        assert "retry-after" in victim.headers
        assert (await winner).status_code == 200
        assert (await gateway.model("a"))["state"] == "unloaded"


async def test_many_requests_for_a_cold_model_share_one_load(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", load_s=0.5, deltas=2)), tmp_path) as gateway:
        answers = await asyncio.gather(*(gateway.chat("a") for _ in range(8)))
        texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
        assert texts == [reply(2)] * 8
        assert (await gateway.model("a"))["loads"] == 1


async def test_a_resident_model_is_served_while_another_loads(tmp_path: Path) -> None:
    with daemon(registry(scripted("a"), scripted("b", load_s=3)), tmp_path) as gateway:
        assert (await gateway.chat("a")).status_code == 200
        waiter = asyncio.create_task(gateway.chat("b"))
        await gateway.until_model("b", state="loading")
        for _ in range(3):
            assert (await gateway.chat("a")).status_code == 200
        assert (await gateway.model("b"))["state"] == "loading"
        assert (await waiter).status_code == 200


async def test_a_model_larger_than_the_budget_is_refused_and_evicts_nobody(tmp_path: Path) -> None:
    document = registry(scripted("a"), scripted("huge", size_gb=3), budget_gb=2)
    with daemon(document, tmp_path) as gateway:
        assert (await gateway.chat("a")).status_code == 200
        answer = await gateway.chat("huge")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_too_large")
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        model = await gateway.model("a")
        assert (model["state"], model["evictions"]) == ("ready", 0)


async def test_a_full_queue_refuses_and_says_when_to_come_back(tmp_path: Path) -> None:
    model = scripted("a", tokens_per_s=20, deltas=20, max_concurrency=1, max_queue=1)
    with daemon(registry(model), tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            waiter = asyncio.create_task(gateway.chat("a"))
            await gateway.until_model("a", waiting=1)
            async with gateway.stream("a") as refused:  # always a real status, streamed or not
                assert refused.status == 503
                assert int(refused.response.headers["retry-after"]) >= 1
                body = await refused.response.aread()
            assert b'"code":"queue_full"' in body
            await stream.rest()
        stream.assert_complete(reply(20))
        assert (await waiter).status_code == 200
