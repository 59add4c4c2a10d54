"""`/admin/explain`: what a request would meet, that it is what then happens, and its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, registry, scripted

pytestmark = pytest.mark.anyio

GIB = 2**30


async def explain(gateway: Daemon, model: str) -> dict[str, Any]:
    answer = await gateway.get(f"/admin/explain?model={model}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def load(gateway: Daemon, model: str) -> None:
    async with gateway.client() as client:
        answer = await client.post(f"/v1/models/{model}/load?wait=true")
        assert answer.status_code == 200, answer.text


async def test_what_fits_and_what_would_have_to_leave(tmp_path: Path) -> None:
    models = [scripted("a"), scripted("org/b"), scripted("c", size_gb=2)]
    with daemon(registry(*models, budget_gb=2), tmp_path) as gateway:
        fits = await explain(gateway, "a")
        assert (fits["fits"], fits["leaves"], fits["expected_wait_s"]) == (True, [], 0)
        assert (fits["needs_bytes"], fits["available_bytes"]) == (GIB, 2 * GIB)
        assert "its load would start at once" in fits["sentence"]

        await load(gateway, "a")
        await load(gateway, "org%2Fb")
        evicts = await explain(gateway, "c")
        assert (evicts["fits"], evicts["leaves"]) == (False, ["a", "org/b"])
        assert (evicts["ceiling"], evicts["refusal"]) == ("budget", None)
        assert "for it 'a', 'org/b' would leave" in evicts["sentence"]
        assert [o["model"] for o in evicts["occupants"] if o["could_leave"]] == ["a", "org/b"]
        assert (await gateway.model("a"))["state"] == "ready"  # asking has changed nothing

        ready = await explain(gateway, "org%2Fb")
        assert (ready["state"], ready["expected_wait_s"]) == ("ready", 0)
        assert (await gateway.chat("c")).status_code == 200
        for name in ("a", "org/b"):
            assert (await gateway.model(name))["evictions"] == 1


@pytest.mark.parametrize("strategy", ["wait", "fail"])
async def test_contended_by_a_lease(tmp_path: Path, strategy: str) -> None:
    document = registry(
        scripted("a", tokens_per_s=20, deltas=10_000),
        scripted("b"),
        {"name": "variant", "of": "b"},
        budget_gb=1,
        contention_policy={"strategy": strategy},
    )
    with daemon(document, tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            told = await explain(gateway, "variant")
        (occupant,) = told["occupants"]
        assert (told["model"], told["strategy"], told["leaves"]) == ("b", strategy, [])
        assert (occupant["model"], len(occupant["leases"])) == ("a", 1)
        assert "in use by 1 running call" in occupant["why"]
        if strategy == "fail":
            assert told["refusal"]["code"] == "no_capacity"
            assert "would be refused (no_capacity)" in told["sentence"]
        else:
            assert (told["refusal"], told["expected_wait_s"]) == (None, None)
            assert "'a' is ready (in use by 1 running call)" in told["sentence"]


async def test_pinned(tmp_path: Path) -> None:
    with daemon(registry(scripted("a"), scripted("b"), budget_gb=1), tmp_path) as gateway:
        await load(gateway, "a")
        async with gateway.client() as client:
            await client.put("/v1/models/a/pin", json={"expires_in_s": 600})
        told = await explain(gateway, "b")
        (occupant,) = told["occupants"]
        assert (occupant["could_leave"], occupant["why"][:10]) == (False, "pinned for")
        assert told["refusal"]["code"] == "no_capacity"
        assert "'a' (1.0 GiB, ready, pinned for" in told["sentence"]


async def test_what_can_never_load(tmp_path: Path) -> None:
    models = [scripted("huge", size_gb=3), {"name": "gone", "path": "/no/such/folder"}]
    with daemon(registry(*models, budget_gb=2), tmp_path) as gateway:
        for name, code, status in [
            ("huge", "model_too_large", 400),
            ("gone", "model_unavailable", 503),
        ]:
            told = await explain(gateway, name)
            assert (told["refusal"]["code"], told["refusal"]["status"]) == (code, status)
            assert f"would be refused ({code})" in told["sentence"]
            answer = await gateway.chat(name)
            assert answer.json()["error"]["message"] == told["refusal"]["message"]


async def test_back_off_after_failures(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", fail_loads=2)), tmp_path) as gateway:
        for _ in range(2):
            assert (await gateway.chat("a")).status_code == 503
        told = await explain(gateway, "a")
        assert (told["state"], told["refusal"]["code"]) == ("failed", "load_failed")
        assert 1 <= told["refusal"]["retry_after_s"] <= 10
        assert "fail_loads" in told["sentence"]


async def test_while_it_loads(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", load_s=30)), tmp_path) as gateway:
        async with gateway.client() as client:
            assert (await client.post("/v1/models/a/load")).status_code == 202
        told = await explain(gateway, "a")
        assert (told["state"], told["expected_wait_s"]) == ("loading", 0)
        assert "a request now would be served when it is ready" in told["sentence"]
