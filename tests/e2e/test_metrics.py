"""Every state, decision and refusal moves a metric, and only models there are have series."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, registry, scripted, write
from tests.harness.figures import samples

pytestmark = pytest.mark.anyio

GIB = 2**30


async def scrape(gateway: Daemon) -> dict[str, float]:
    """Samples by name and labels, as `name{label=value,...}` in the order of the labels' names."""
    return samples((await gateway.get("/metrics")).text)


def assert_holds(found: dict[str, float], expected: dict[str, float]) -> None:
    assert {key: found.get(key) for key in expected} == expected


async def test_a_models_life_in_figures(tmp_path: Path) -> None:
    document = registry(scripted("a", fail_loads=1, deltas=5), scripted("b"), budget_gb=1)
    with daemon(document, tmp_path) as gateway:
        assert (await gateway.chat("a")).status_code == 503
        assert (await gateway.chat("a")).status_code == 200
        assert_holds(
            await scrape(gateway),
            {
                "model_state{model=a,state=ready}": 1,
                "model_state{model=a,state=failed}": 0,
                "model_state{model=b,state=unloaded}": 1,
                "model_charge_bytes{model=a}": GIB,
                "model_pinned{model=a}": 0,
                "engines": 1,
                "available_bytes": 0,
            },
        )
        assert (await gateway.chat("b")).status_code == 200
        os.kill((await gateway.model("b"))["pid"], signal.SIGKILL)
        await gateway.until_model("b", state="failed")
        found = await scrape(gateway)
    assert_holds(
        found,
        {
            "load_failures_total{model=a}": 1,
            "model_loads_total{model=a}": 2,
            "model_evictions_total{model=a,reason=evicted}": 1,
            "model_age_at_eviction_seconds_count{model=a}": 1,
            "engine_exits_total{cause=load_failed,model=a}": 1,
            "engine_exits_total{cause=asked,model=a}": 1,
            "engine_exits_total{cause=crashed,model=b}": 1,
            "queue_wait_seconds_count{model=a}": 1,
            "inter_token_seconds_count{model=a}": 1,
            "tokens_total{kind=completion,model=a}": 5,
            "refusals_total{code=load_failed,model=a}": 1,
            "model_state{model=b,state=failed}": 1,
            "stranded_bytes": 0,
            "overcommitted": 0,
            "pressure{level=normal}": 1,
            "pressure{level=critical}": 0,
            "engines": 0,
            "committed_bytes": 0,
        },
    )


async def test_contention_in_figures(tmp_path: Path) -> None:
    document = registry(
        scripted("a", tokens_per_s=20, deltas=10_000),
        scripted("b"),
        scripted("pinned", pin=True),
        budget_gb=2,
        preempt_grace_s=0.1,
        contention_policy={"strategy": "preempt"},
    )
    with daemon(document, tmp_path) as gateway:
        assert (await gateway.chat("pinned")).status_code == 200
        async with gateway.stream("a") as victim:
            await victim.until_text()
            assert_holds(await scrape(gateway), {"leases{model=a}": 1, "waiting{model=a}": 0})
            assert (await gateway.chat("b")).status_code == 200
            await victim.rest()
        found = await scrape(gateway)
    assert_holds(
        found,
        {
            "preemptions_total{model=a}": 1,
            "calls_ended_total{code=preempted,model=a}": 1,
            "model_evictions_total{model=a,reason=preempted}": 1,
            "model_pinned{model=pinned}": 1,
            "leases{model=a}": 0,
        },
    )


async def test_lines_that_a_file_does_not_take_are_counted(tmp_path: Path) -> None:
    (tmp_path / "log.d").mkdir()
    server = {"log_file": str(tmp_path / "log.d")}
    with daemon(registry(scripted("a"), server=server), tmp_path) as gateway:
        assert (await gateway.chat("a")).status_code == 200
        lost = "failed_writes_total{file=log}"
        before = (await scrape(gateway))[lost]
        assert (await gateway.chat("a")).status_code == 200
        async with asyncio.timeout(30):
            while (await scrape(gateway))[lost] <= before:
                continue


async def test_series_come_and_go_with_the_registry(tmp_path: Path) -> None:
    a, variant = scripted("a"), {"name": "variant", "of": "a"}
    with daemon(registry(a, scripted("gone")), tmp_path) as gateway:
        assert (await gateway.chat("gone")).status_code == 200
        await reload(gateway, registry(a, variant))
        assert (await gateway.chat("variant")).status_code == 200
        await gateway.until(lambda s: [model["name"] for model in s["models"]] == ["a"])
        series = await scrape(gateway)
        route = "/v1/chat/completions"
        assert series[f"requests_total{{code=200,model=variant,route={route}}}"] == 1
        assert series["model_loads_total{model=a}"] == 1  # a variant is loaded by its base
        assert not [key for key in series if "model=gone" in key]

        await reload(gateway, registry(a))
        series = await scrape(gateway)
        assert not [key for key in series if "model=variant" in key]
        assert series["reloads_total{outcome=applied}"] == 2


async def reload(gateway: Daemon, document: dict[str, Any]) -> None:
    """The watcher sees the same change: whoever was first has applied it."""
    write(document, gateway.folder)
    async with gateway.client() as client:
        assert (await client.post("/admin/reload")).status_code == 200
