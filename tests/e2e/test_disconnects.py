"""A client that leaves frees what it held, in whatever phase, and harms nobody."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, registry, reply, scripted

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Case:
    """Where a call of `model` is when its client leaves: when its status has these `values`."""

    name: str
    registry: dict[str, Any]
    model: str
    values: dict[str, Any]
    busy: str | None = None
    """A model that streams meanwhile, and has to end as if nothing had happened."""
    loads: int = 1


HELD = {"tokens_per_s": 20, "deltas": 40}

CASES = [
    Case(
        "queued",
        registry(scripted("one", max_concurrency=1, **HELD)),
        "one",
        {"waiting": 1, "leases": 1},
        busy="one",
    ),
    Case(
        "for-room",
        registry(scripted("one", **HELD), scripted("two"), budget_gb=1),
        "two",
        {"waiting": 1},
        busy="one",
        loads=0,
    ),
    Case("loading", registry(scripted("one", load_s=1)), "one", {"state": "loading", "waiting": 1}),
    Case("prefill", registry(scripted("one", prefill_s=600)), "one", {"leases": 1, "running": 1}),
    Case(
        "answering",
        registry(scripted("one", tokens_per_s=20, deltas=100_000)),
        "one",
        {"leases": 1, "running": 1},
    ),
]


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_what_a_client_held_is_free_when_it_has_left(
    tmp_path: Path, case: Case, streamed: bool
) -> None:
    with daemon(case.registry, tmp_path) as gateway:
        async with contextlib.AsyncExitStack() as stack:
            other = None
            if case.busy is not None:
                other = await stack.enter_async_context(gateway.stream(case.busy))
                await other.until_text()
            client = asyncio.create_task(ask(gateway, case.model, streamed))
            await gateway.until_model(case.model, **case.values)
            client.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await client
            if other is None:
                await gateway.until_model(case.model, leases=0, waiting=0)
            else:
                await gateway.until_model(case.model, waiting=0)
                (await other.rest()).assert_complete(reply(40))
        model = await gateway.until_model(case.model, leases=0, running=0)
        assert (model["waiting"], model["loads"]) == (0, case.loads)
        await gateway.until(lambda _: "client_gone" in gateway.log)
        assert (await gateway.model(case.model))["state"] in ("ready", "loading", "unloaded")


async def test_a_load_whose_only_waiter_left_still_ends_well(tmp_path: Path) -> None:
    with daemon(registry(scripted("one", load_s=1)), tmp_path) as gateway:
        client = asyncio.create_task(ask(gateway, "one", streamed=True))
        await gateway.until_model("one", state="loading", waiting=1)
        client.cancel()
        await gateway.until_model("one", state="ready")
        assert (await gateway.chat("one")).status_code == 200
        assert (await gateway.model("one"))["loads"] == 1


async def test_of_two_waiters_for_one_load_the_one_that_stays_is_served(tmp_path: Path) -> None:
    with daemon(registry(scripted("one", load_s=1, deltas=2)), tmp_path) as gateway:
        leaver = asyncio.create_task(ask(gateway, "one", streamed=False))
        await gateway.until_model("one", waiting=1)
        stayer = asyncio.create_task(gateway.chat("one"))
        await gateway.until_model("one", waiting=2)
        leaver.cancel()
        await gateway.until_model("one", waiting=1)
        assert (await stayer).json()["choices"][0]["message"]["content"] == reply(2)
        assert (await gateway.model("one"))["loads"] == 1


async def ask(gateway: Daemon, model: str, streamed: bool) -> None:
    if streamed:
        async with gateway.stream(model) as stream:
            await stream.rest()
    else:
        await gateway.chat(model)
