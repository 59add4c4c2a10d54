"""What probes, scrapers and operators look at: it shows everything and touches nothing."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.daemon import Daemon, daemon, registry, scripted

pytestmark = pytest.mark.anyio

NAMED = "org/model with space"
ROUTES = [
    *("/v1/models", "/v1/models/small", "/v1/models/org/model%20with%20space"),
    *("/v1/models/org%2Fmodel%20with%20space", "/v1/models/other-name"),
    *("/health", "/livez", "/readyz", "/metrics", "/v1/status"),
    "/admin/explain?model=small",
]

MODELS = registry(
    scripted("small", size_gb=1, deltas=2),
    scripted(NAMED, size_gb=2, aliases=["other-name"], context_length=4096, description="big"),
    budget_gb=2,
)


async def test_no_route_to_read_loads_a_model_or_counts_as_its_use(tmp_path: Path) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        assert (await gateway.chat("small")).status_code == 200
        before = await gateway.model("small")
        async with gateway.client() as client:
            for path in ROUTES:
                assert (await client.get(path)).status_code == 200, path
                head = await client.head(path)
                assert (head.status_code, head.content) == (200, b""), path
        after = await gateway.model("small")
        assert after["idle_s"] > before["idle_s"]
        assert after["loads"] == 1
        assert (await gateway.model(NAMED))["loads"] == 0


async def test_models_are_described_by_name_and_alias(tmp_path: Path) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        listed = (await gateway.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [card["id"] for card in listed["data"]] == ["small", NAMED]
        for path in ROUTES[2:5]:
            card = (await gateway.get(path)).json()
            assert (card["id"], card["object"]) == (NAMED, "model")
            assert (card["context_length"], card["description"]) == (4096, "big")
            assert card["status"] == {"value": "unloaded"}
        await gateway.chat("other-name")
        card = (await gateway.get("/v1/models/other-name")).json()
        assert card["status"] == {"value": "loaded"}
        assert card["meta"]["charge_bytes"] == 2 * 2**30


async def test_status_accounts_for_every_byte(tmp_path: Path) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        await gateway.chat("small")
        status = await gateway.status()
        gib = 2**30
        memory = status["memory"]
        assert (memory["configured_budget_bytes"], memory["budget_bytes"]) == (2 * gib, 2 * gib)
        assert (memory["committed_bytes"], memory["available_bytes"]) == (gib, gib)
        small = await gateway.model("small")
        assert small["measured"]["weights"] == gib
        assert small["pid"] in [engine.pid for engine in gateway.engines()]
        assert small["entry"]["scripted"]["deltas"] == 2


async def test_metrics_parse_and_move(tmp_path: Path) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        await gateway.chat("small")
        async with gateway.stream("small") as stream:
            await stream.rest()
        await gateway.chat(NAMED)  # evicts the other
        await gateway.chat("no-such-model")
        await gateway.chat("small", temperature=3)
        samples = await scrape(gateway)
    route = "/v1/chat/completions"
    for name, labels, value in [
        ("requests_total", {"route": route, "model": "small", "code": "200"}, 2),
        ("requests_total", {"route": route, "model": "", "code": "model_not_found"}, 1),
        ("requests_total", {"route": route, "model": "", "code": "invalid_request"}, 1),
        ("request_duration_seconds_count", {"route": route, "model": "small"}, 2),
        ("time_to_first_token_seconds_count", {"model": "small"}, 2),
        ("model_loads_total", {"model": "small"}, 1),
        ("model_load_seconds_count", {"model": NAMED}, 1),
        ("model_evictions_total", {"model": "small", "reason": "evicted"}, 1),
        ("engine_exits_total", {"model": "small", "cause": "asked"}, 1),
        ("model_loaded", {"model": "small"}, 0),
        ("model_loaded", {"model": NAMED}, 1),
        ("model_memory_bytes", {"model": NAMED, "class": "weights"}, 2 * 2**30),
        ("budget_bytes", {}, 2 * 2**30),
        ("committed_bytes", {}, 2 * 2**30),
        ("leases", {"model": "small"}, 0),
        ("waiting", {"model": "small"}, 0),
    ]:
        key = (f"mlx_gateway_{name}", frozenset(labels.items()))
        assert samples.get(key) == value, (key, samples.get(key))


async def test_what_clients_send_never_becomes_a_label(tmp_path: Path) -> None:
    with daemon(MODELS, tmp_path) as gateway:
        for number in range(3):
            await gateway.chat(f"made-up-{number}")
            await gateway.get(f"/made-up-{number}")
        assert not [key for key in await scrape(gateway) if "made-up" in str(key)]


async def scrape(gateway: Daemon) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    page: httpx.Response = await gateway.get("/metrics")
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }
