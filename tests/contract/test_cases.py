"""Failures that servers of this kind are known for, each kept away by a case: streams, validation,
images, agents and pickers as clients, and figures."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.cases import Case, load, run
from tests.harness.daemon import CHAT, Daemon, chat_body, daemon, registry, script, scripted
from tests.unit.security.test_images import png

pytestmark = pytest.mark.anyio

MIB = 2**20
HERMES = Path(__file__).parents[1] / "fixtures" / "models" / "scripted-hermes"
GREETING = ["Good ", "day"]
FERRY = ['\n<tool_call>\n{"name": "ferry", "argu', 'ments": {"port": "Bergen"}}\n</tool_call>']
CLOCK = ['\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>']
THOUGHT = ["<think>", "Two things ", "to find.", "</think>", "Let me see."]
OUTCOMES = ("client_gone", "engine_error")
COLD: dict[str, Any] = {"load_s": 1.5, "prefill_s": 2, "deltas": GREETING}

MODELS = [
    scripted("plain", deltas=GREETING, context_length=500_000),
    scripted("caller", deltas=FERRY, tool_parser="hermes"),
    scripted(
        "thinker", deltas=THOUGHT + FERRY + CLOCK, tool_parser="hermes", reasoning_parser="qwen3"
    ),
    scripted("eyes", kind="vision"),
    scripted("cold-chat", **COLD),
    scripted("cold-message", **COLD),
    scripted("cold-body", **COLD),
    {"name": "template", "path": str(HERMES), "context_length": 4096},
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(*MODELS, server={"heartbeat_s": 0.2, "max_body_mb": 8})
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    keys = [{"name": "agent", "key": "k-agent"}]
    document = registry(scripted("plain", deltas=GREETING), server={"api_keys": keys})
    with daemon(document, tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.mark.parametrize(
    "case", [*load("named_stream.yaml"), *load("named_validation.yaml")], ids=str
)
async def test_case(gateway: Daemon, case: Case) -> None:
    async with gateway.client() as client:
        (answer, *_) = await run(case, client)
        used = connection_of(answer)
        after = await client.get("/livez")
        assert after.status_code == 200
        assert connection_of(after) is used, "a refusal ends the request, not the connection"


def connection_of(answer: httpx.Response) -> Any:
    """The socket that brought it."""
    return answer.extensions["network_stream"].get_extra_info("socket")


# --- a tool's round trip --------------------------------------------------------------------------

CALL = {"id": "call_7", "type": "function", "function": {"name": "halve", "arguments": '{"n": 90}'}}
TOOL = {"name": "halve", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
RESULT = {"role": "tool", "tool_call_id": "call_7", "content": "45"}
PARTS = [{"type": "text", "text": "45"}]


def trip(call: dict[str, Any], result: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"role": "user", "content": "half of ninety?"}
    return [asked, {"role": "assistant", "tool_calls": [CALL], **call}, result]


@pytest.mark.parametrize(
    "messages",
    [
        trip({"content": None}, RESULT),
        trip({}, RESULT),
        trip({"content": ""}, RESULT),
        trip({"content": None}, {**RESULT, "content": PARTS}),
        trip({"content": None, "refusal": None, "function_call": None}, RESULT),
    ],
    ids=["null", "absent", "empty", "parts", "extra"],
)
async def test_the_model_reads_the_call_and_its_result(
    gateway: Daemon, messages: list[dict[str, Any]]
) -> None:
    """A template of a model writes the arguments as an object, and so they have to reach it."""
    prompt = await rendered(gateway, messages)
    assert '{"name": "halve", "arguments": {"n": 90}}' in prompt
    assert "45" in prompt.partition("</tool_call>")[2]
    assert prompt == await rendered(gateway, trip({"content": None}, RESULT))


async def rendered(gateway: Daemon, messages: list[dict[str, Any]]) -> str:
    tools = [{"type": "function", "function": TOOL}]
    body = {"model": "template", "messages": messages, "tools": tools}
    async with gateway.client() as client:
        tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
        back = await client.post("/detokenize", json={"model": "template", "tokens": tokens})
    prompt: str = back.json()["prompt"]
    return prompt


async def test_the_round_trip_costs_the_same_in_either_dialect(gateway: Daemon) -> None:
    use = {"type": "tool_use", "id": "call_7", "name": "halve", "input": {"n": 90}}
    result = {"type": "tool_result", "tool_use_id": "call_7", "content": PARTS}
    tool = {"name": "halve", "input_schema": TOOL["parameters"]}
    messages = [
        {"role": "user", "content": "half of ninety?"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": "template", "messages": messages, "tools": [tool]}
    chat = {"messages": trip({"content": None}, RESULT), "max_tokens": 1}
    chat["tools"] = [{"type": "function", "function": TOOL}]
    async with gateway.client() as client:
        counted = (await client.post("/v1/messages/count_tokens", json=body)).json()
        asked = (await client.post(CHAT, json={"model": "template", **chat})).json()
    assert counted["input_tokens"] == asked["usage"]["prompt_tokens"]


# --- images ---------------------------------------------------------------------------------------


class Canary(BaseHTTPRequestHandler):
    """Says yes to everybody, and is asked by nobody."""

    hits = 0

    def do_GET(self) -> None:
        type(self).hits += 1
        self.send_response(302 if self.path == "/redirect" else 200)
        self.send_header("Location", "/x")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    folder = tmp_path_factory.mktemp("images")
    (folder / "secret.png").write_bytes(png(8, 8))
    bomb = base64.b64encode(png(30_000, 30_000)).decode()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Canary)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {"PORT": str(server.server_port), "FOLDER": str(folder), "BOMB": bomb}
    server.shutdown()
    thread.join(30)
    server.server_close()


@pytest.mark.parametrize("case", load("named_images.yaml"), ids=str)
async def test_image(gateway: Daemon, names: Mapping[str, str], case: Case) -> None:
    async with gateway.client() as client:
        await run(case, client, names)
    assert Canary.hits == 0
    assert (await gateway.model("eyes"))["loads"] == 0


# --- bodies without end ---------------------------------------------------------------------------


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), MIB):
        yield body[start : start + MIB]


async def test_large_bodies_cost_no_memory_and_hold_nobody_up(gateway: Daemon) -> None:
    huge = json.dumps(chat_body("plain", "z" * 20_000_000)).encode()
    long = json.dumps(chat_body("plain", "word " * 1_000_000)).encode()
    process = psutil.Process(gateway.pid)
    before = process.memory_info().rss
    async with gateway.client() as client:
        for content, status, code in (
            (huge, 413, "request_too_large"),
            (pieces(huge), 413, "request_too_large"),
            (long, 400, "context_length_exceeded"),
        ):
            asking = asyncio.create_task(post(client, content))
            while not asking.done():
                assert (await gateway.get("/health")).status_code == 200
            answer = await asking
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert process.memory_info().rss - before < 200 * MIB


async def post(client: httpx.AsyncClient, content: bytes | AsyncIterator[bytes]) -> httpx.Response:
    return await client.post(CHAT, content=content, headers={"content-type": "application/json"})


# --- agents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", load("named_clients.yaml"), ids=str)
async def test_agent(guarded: Daemon, case: Case) -> None:
    async with guarded.client() as client:
        await run(case, client)


async def test_counting_needs_no_model_and_probes_leave_no_line(tmp_path: Path) -> None:
    document = registry(scripted("plain"), scripted("main"), budget_gb=1)
    (count,) = [case for case in load("named_clients.yaml") if case.times > 1]
    with daemon(document, tmp_path) as gateway:
        assert (await gateway.chat("main")).status_code == 200
        async with gateway.client() as client:
            await run(count, client)
            for path in ("/health", "/metrics") * 150:
                assert (await client.get(path)).status_code == 200
        assert (await gateway.model("plain"))["loads"] == 0
        assert (await gateway.model("main"))["state"] == "ready"
        assert "/metrics" not in gateway.log
        assert "/health" not in gateway.log
        assert "/v1/messages/count_tokens" in gateway.log
        assert "garden" not in gateway.log


# --- pickers of models ----------------------------------------------------------------------------


async def test_a_list_tells_the_truth_and_touches_nothing(tmp_path: Path) -> None:
    document = registry(
        scripted("ready", ttl_s=1),
        scripted("loading", load_s=600),
        scripted("broken", fail_loads=1000),
        scripted("cold", kind="embedding"),
        budget_gb=4,
    )
    with daemon(document, tmp_path) as gateway:
        assert (await gateway.chat("broken")).status_code == 503
        assert (await gateway.chat("ready")).status_code == 200
        assert (await listed(gateway))["ready"] == "loaded"
        waiting = asyncio.create_task(gateway.chat("loading"))
        await gateway.until_model("loading", state="loading")
        seen = await listed(gateway)
        # An idle model leaves in its time, however often somebody looks.
        async with asyncio.timeout(30):
            while (await listed(gateway))["ready"] != "unloaded":
                assert (await gateway.get("/v1/models/ready")).json()["id"] == "ready"
        status = await gateway.status()
        waiting.cancel()
        await asyncio.wait([waiting])
    assert {**seen, "ready": None} == {
        "ready": None,
        "loading": "loading",
        "broken": "error",
        "cold": "unloaded",
    }
    loads = {model["name"]: model["loads"] for model in status["models"]}
    assert (loads["ready"], loads["cold"]) == (1, 0)


async def listed(gateway: Daemon) -> dict[str, str]:
    """What a picker shows: each model once, with its state, and no path of this machine."""
    answer = await gateway.get("/v1/models")
    body = answer.json()
    assert body["object"] == "list"
    assert {type(card["created"]) for card in body["data"]} == {int}
    assert {card["object"] for card in body["data"]} == {"model"}
    assert str(gateway.folder) not in answer.text
    states = {card["id"]: card["status"]["value"] for card in body["data"]}
    assert len(states) == len(body["data"])
    return states


# --- figures --------------------------------------------------------------------------------------


async def test_what_clients_make_up_is_counted_and_named_nowhere(gateway: Daemon) -> None:
    before = await samples(gateway)
    async with gateway.client() as client:
        for case in load("named_ops.yaml"):
            await run(case, client)
    after = await samples(gateway)
    assert len(after.keys() - before.keys()) <= 40
    page = (await gateway.get("/metrics")).text
    assert len(page) <= 256 * 1024
    for invented in ("invented", "blog", "resp_", "req_", "wicked", "zzz", "BREW"):
        assert invented not in page
    route = f'{{code="model_not_found",model="",route="{CHAT}"}}'
    counted = after[f"requests_total{route}"] - before.get(f"requests_total{route}", 0)
    assert counted == 501


async def test_histograms_reach_from_a_quarter_of_a_second_to_ten_minutes(gateway: Daemon) -> None:
    text = script("Good ", {"sleep": 0.5}, "day")
    async with gateway.stream("plain", text) as stream:
        await stream.rest()
    after = await samples(gateway)
    first = bounds(after, "time_to_first_token_seconds_bucket")
    assert {0.25, 30, 60} <= first
    assert max(first) >= 120
    assert max(bounds(after, "request_duration_seconds_bucket")) >= 600
    # A stream lasts until its last byte, not until its headers.
    whole = f'{{model="plain",route="{CHAT}"}}'
    assert after[f"request_duration_seconds_sum{whole}"] >= 0.5
    assert after['leases{model="plain"}'] == 0


async def test_who_leaves_and_who_fails_have_outcomes_of_their_own(gateway: Daemon) -> None:
    ended = [f'requests_total{{code="{code}",model="plain",route="{CHAT}"}}' for code in OUTCOMES]
    before = await samples(gateway)
    async with gateway.stream("plain", script("Good ", {"sleep": 30}, "day")) as stream:
        await stream.until_text()
        assert (await samples(gateway))['requests_in_flight{model="plain"}'] == 1
    answer = await gateway.chat("plain", script({"raise": "it broke"}))
    assert answer.status_code == 500
    async with asyncio.timeout(30):
        after = before
        while [after.get(key, 0) - before.get(key, 0) for key in ended] != [1, 1]:
            after = await samples(gateway)
    assert after['requests_in_flight{model="plain"}'] == 0


async def test_a_probe_that_is_refused_leaves_a_line(guarded: Daemon) -> None:
    assert (await guarded.get("/livez")).status_code == 200
    assert (await guarded.get("/metrics")).status_code == 401
    assert "GET /metrics 401" in guarded.log
    assert "/livez" not in guarded.log


async def samples(gateway: Daemon) -> dict[str, float]:
    """By `name{label="value",...}` without the prefix; the page parses."""
    found = {}
    for family in text_string_to_metric_families((await gateway.get("/metrics")).text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{sample.labels[key]}"' for key in sorted(sample.labels))
            found[f"{sample.name.removeprefix('mlx_gateway_')}{{{labels}}}"] = sample.value
    return found


def bounds(samples: dict[str, float], name: str) -> set[float]:
    """The finite upper ends of a histogram's buckets, in seconds."""
    ends = {key.split('le="')[1].split('"')[0] for key in samples if key.startswith(name)}
    return {float(end) for end in ends if end != "+Inf"}
