"""Every metric moves when what it tells of happens, all in one gateway; dashboard and docs agree.

The gateway plays its acts once, one after the other. Each act says which metrics it moves, and is
over for the test when they have. What a scripted gateway cannot bring about is moved by unit tests
of the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gateway.metrics import Metrics
from tests.harness.daemon import (
    POLL_S,
    WAIT_TIMEOUT_S,
    Daemon,
    chat_body,
    daemon,
    registry,
    script,
    scripted,
    write,
)
from tests.harness.dashboards import Dashboard
from tests.harness.figures import Family, families, names, samples

ROOT = Path(__file__).parents[2]
OURS = "mlx_gateway_"
URL = "/metrics?aliases=vllm"

DOCUMENT = registry(
    scripted("a", deltas=5, kv_gb_per_1k=1),
    {"name": "variant", "of": "a"},
    scripted("slow", tokens_per_s=20, deltas=10_000, max_concurrency=1),
    scripted("prompt", prefill_s=0.2),
    scripted("flaky", fail_loads=["error", "ok"]),
    {"name": "unsteady", "of": "flaky"},
    scripted("thinker", deltas=["<think>", "so ", "be ", "it", "</think>", "Yes."])
    | {"reasoning_parser": "qwen3"},
    scripted("idle"),
    scripted("big", size_gb=4),
    budget_gb=4,
    preempt_grace_s=0.1,
    contention_policy={"strategy": "preempt"},
    server={"drain_s": 5},
)
"""`big` needs all the room there is."""

Act = Callable[[Daemon, httpx.AsyncClient], contextlib.AbstractAsyncContextManager[None]]
ACTS: dict[str, Act] = {}
MOVES: dict[str, tuple[str, ...]] = {}


def act(*metrics: str) -> Callable[[Callable[..., AsyncIterator[None]]], None]:
    """What is registered here is played in order; in its middle these metrics have moved."""

    def register(play: Callable[..., AsyncIterator[None]]) -> None:
        ACTS[play.__name__] = contextlib.asynccontextmanager(play)
        MOVES[play.__name__] = metrics

    return register


async def ask(client: httpx.AsyncClient, model: str, text: str = "hello") -> int:
    answer = await client.post("/v1/chat/completions", json=chat_body(model, text))
    return answer.status_code


@act(
    *("requests_total", "request_duration_seconds", "time_to_first_token_seconds"),
    *("inter_token_seconds", "tokens_total", "prefill_seconds", "queue_wait_seconds"),
    *("model_loads_total", "model_load_seconds", "model_load_stage_seconds_total"),
    *("model_loaded", "model_state", "model_charge_bytes", "model_memory_bytes"),
    *("engine_heartbeat_age_seconds", "engines", "committed_bytes", "available_bytes"),
    *("vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds"),
    *("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    *("vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds"),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    *("process_cpu_seconds_total",),
)
async def answering(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    assert await ask(client, "a") == 200
    yield


@act("tokens_total", "request_duration_seconds", "queue_wait_seconds")
async def a_variant(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    assert await ask(client, "variant") == 200
    yield


@act("tokens_total")
async def thinking(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    assert await ask(client, "thinker") == 200
    yield


@act("prefill_turn_wait_seconds")
async def a_long_prompt(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    assert await ask(client, "prompt", "word " * 600) == 200
    yield


@act("load_failures_total", "refusals_total", "engine_exits_total")
async def a_load_that_fails(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    assert await ask(client, "unsteady") == 503
    yield


@act("engine_exits_total", "engine_restarts_total")
async def a_crash(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    assert await ask(client, "a", script({"exit": True})) >= 500
    assert await ask(client, "a") == 200
    yield


@act("model_pinned", "loads_given_up_total")
async def a_load_without_room(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    await client.put("/v1/models/a/pin", json={"expires_in_s": 600})
    await client.post("/v1/models/big/load")
    yield
    await client.delete("/v1/models/a/pin")


@act("helper_processes", "helper_memory_bytes", "process_open_fds")
async def counting(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    body = {"model": "idle", "prompt": "how many are these"}
    assert (await client.post("/tokenize", json=body)).status_code == 200
    yield


@act(
    *("leases", "waiting", "requests_in_flight", "engine_running"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
)
async def two_at_once(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    async with gateway.stream("slow") as stream:
        await stream.until_text()
        waiting = asyncio.create_task(ask(client, "slow"))
        yield
        waiting.cancel()
        await asyncio.wait([waiting])


@act("client_disconnects_total")
async def leaving(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    async with gateway.stream("slow") as stream:
        await stream.until_text()
    yield
    await gateway.until_model("slow", leases=0, waiting=0)


@act("cancels_total")
async def cancelling(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    async with gateway.stream("slow") as stream:
        await stream.until_text()
        request_id = stream.response.headers["x-request-id"]
        assert (await client.delete(f"/v1/requests/{request_id}")).status_code == 200
        await stream.rest()
        yield


@act(
    *("preemptions_total", "calls_ended_total", "vllm:num_preemptions_total"),
    *("model_evictions_total", "model_age_at_eviction_seconds"),
)
async def preempting(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    async with gateway.stream("slow") as stream:
        await stream.until_text()
        assert await ask(client, "big") == 200
        yield
        await stream.rest()


@act("model_thrash_total")
async def coming_back(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    assert await ask(client, "a") == 200
    yield


@act(
    *("budget_bytes", "reloads_total", "last_reload_success_timestamp_seconds"),
    "helper_processes",
)
async def room_for_a_spare(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    manager = {**DOCUMENT["manager"], "memory_budget_gb": 5, "standby": 1}
    write(DOCUMENT | {"manager": manager}, gateway.folder)
    yield


@act("reloads_total", "last_reload_successful")
async def a_broken_registry(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    write("models: [", gateway.folder)
    yield
    write(DOCUMENT, gateway.folder)


@act("draining")
async def stopping(gateway: Daemon, client: httpx.AsyncClient) -> AsyncIterator[None]:
    async with gateway.stream("slow") as stream:
        await stream.until_text()
        gateway.signal(signal.SIGTERM)
        yield


BY_UNIT_TESTS = {
    *("pressure", "overcommitted", "stranded_bytes", "model_kv_limit_bytes", "engine_waiting"),
    *("prompt_cache_total", "prompt_cache_entries", "prompt_cache_disk_bytes"),
    *("prompt_cache_shrinks_total", "feature_cache_total", "feature_cache_bytes"),
    *("failed_writes_total", "vllm:kv_cache_usage_perc"),
}
CONSTANT = {
    *("build_info", "process_start_time_seconds", "process_max_fds"),
    *("process_resident_memory_bytes", "process_virtual_memory_bytes"),
}


# --- the play -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Played:
    """The families that moved in each act, and everything that was on any page."""

    moved: dict[str, set[str]] = field(default_factory=dict)
    families: dict[str, Family] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)

    async def look(self, client: httpx.AsyncClient) -> dict[str, Family]:
        page = (await client.get(URL)).text
        found = families(page)
        for name, labels in names(page).items():
            self.names[name] = self.names.get(name, set()) | labels
        self.families |= found
        self.last = samples(page)
        return found

    async def play(self, name: str, gateway: Daemon, client: httpx.AsyncClient) -> None:
        before, wanted = await self.look(client), set(MOVES[name])
        deadline = asyncio.get_running_loop().time() + WAIT_TIMEOUT_S
        async with ACTS[name](gateway, client):
            while True:
                after = await self.look(client)
                moved = {key for key in after if after[key].series != before[key].series}
                self.moved[name] = {key.removeprefix(OURS) for key in moved}
                late = asyncio.get_running_loop().time() > deadline
                if late or wanted <= self.moved[name]:
                    return
                await asyncio.sleep(POLL_S)


async def play(gateway: Daemon) -> Played:
    played = Played()
    async with gateway.client() as client:
        for name in ACTS:
            await played.play(name, gateway, client)
    return played


def silent() -> dict[str, set[str]]:
    """The names of what has no series here, because only unit tests move it."""
    metrics = Metrics()
    metrics.shrinks.labels("a").inc()
    return names(metrics.page().decode())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    with daemon(DOCUMENT, tmp_path_factory.mktemp("gateway")) as gateway:
        played = asyncio.run(play(gateway))
    for name, labels in silent().items():
        played.names[name] |= labels
    return played


@pytest.mark.parametrize(
    ("name", "metric"), [(name, metric) for name in MOVES for metric in MOVES[name]]
)
def test_it_moves(played: Played, name: str, metric: str) -> None:
    assert metric in played.moved[name]


def test_every_metric_is_moved_somewhere(played: Played) -> None:
    moved = {metric for metrics in MOVES.values() for metric in metrics}
    known = moved | BY_UNIT_TESTS | CONSTANT
    assert {name.removeprefix(OURS) for name in played.families} == known
    assert not moved & (BY_UNIT_TESTS | CONSTANT)


def test_variants_have_their_own_name_in_what_requests_move(played: Played) -> None:
    for key in (
        "refusals_total{code=load_failed,model=unsteady}",
        "tokens_total{kind=completion,model=variant}",
        "queue_wait_seconds_count{model=variant}",
        "inter_token_seconds_count{model=variant}",
        "time_to_first_token_seconds_count{model=variant}",
        "request_duration_seconds_count{model=variant,route=/v1/chat/completions}",
    ):
        assert played.last[key] > 0
    for name in ("model_loads_total", "load_failures_total", "leases", "model_state"):
        assert not [key for key in played.last if key.startswith(name) and "variant" in key]
    assert played.last["tokens_total{kind=reasoning,model=thinker}"] > 0
    assert played.last["requests_in_flight{model=a}"] == 0


# --- the dashboard --------------------------------------------------------------------------------

DASHBOARD = Dashboard.read(ROOT / "deploy" / "grafana" / "mlx-gateway.json")


def test_every_query_of_the_dashboard_finds_something(played: Played) -> None:
    faults = [fault for query in DASHBOARD.queries for fault in query.faults(played.names)]
    assert not faults, "\n".join(faults)


def test_the_dashboard_covers_what_it_says() -> None:
    assert DASHBOARD.rows == ["Overview", "Latency", "Tokens", "Memory", "Models", "Errors"]
    assert len(DASHBOARD.queries) >= 30
    assert {query.datasource for query in DASHBOARD.queries} == {"${datasource}"}


# --- the documentation ----------------------------------------------------------------------------

_ROW = re.compile(r"\| `(?P<name>[\w:]+)` \| (?P<kind>\w+) \|(?P<labels>[^|]*)\|")


def documented() -> dict[str, tuple[str, set[str]]]:
    """By name without prefix, the type and the labels of each row of a table."""
    rows: dict[str, tuple[str, set[str]]] = {}
    for row in _ROW.finditer((ROOT / "docs" / "metrics.md").read_text()):
        assert row["name"] not in rows, f"{row['name']} is there twice"
        rows[row["name"]] = (row["kind"], set(re.findall(r"`(\w+)`", row["labels"])))
    return rows


def test_the_documentation_has_every_metric_and_no_other(played: Played) -> None:
    real = {}
    for name, family in played.families.items():
        label_names = played.names[f"{name}_count" if family.kind == "histogram" else name]
        real[name.removeprefix(OURS)] = (family.kind, label_names)
    assert documented() == real
