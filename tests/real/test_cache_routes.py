"""The prompt cache through the whole gateway: usage, routes, warm prompts, files on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.make_models import make
from tests.harness.daemon import POLL_S, Daemon, daemon, registry, scripted

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

AGENT = "You are a careful agent. " + "Be brief, be kind, and be right. " * 8
OTHER = "You are another agent altogether. " + "Say little. " * 20
QUESTION = "What is the sea?"
OPERATOR, TEAM = {"x-api-key": "operator-key"}, {"x-api-key": "team-key"}


def document(model: Path, folder: Path) -> dict[str, Any]:
    (folder / "agents.json").write_text(json.dumps([[{"role": "system", "content": AGENT}]]))
    keys = [
        {"name": "operator", "key": "operator-key", "rights": ["infer", "manage"]},
        {"name": "team", "key": "team-key", "models": ["plain"]},
    ]
    text = {"path": str(model), "kv_memory_gb": 0.1, "prompt_cache_gb": 0.1}
    warm = str(folder / "agents.json")
    return registry(
        {"name": "plain", **text, "aliases": ["other-name"]},
        {"name": "kept", **text, "prompt_cache_disk_gb": 0.1, "warm_prompts": warm},
        {"name": "variant", "of": "plain", "temperature": 0},
        scripted("script", 0.1),
        server={"api_keys": keys},
    )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("gateway")
    model = make("random-wander", folder)
    environment = {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
    with daemon(document(model, folder), folder, environment) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        client.headers.update(OPERATOR)
        yield client


async def chat(client: httpx.AsyncClient, model: str, system: str) -> tuple[str, int, int]:
    """The answer, prompt tokens, and how many of those were cached."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 5}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer.json()["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


async def stats(client: httpx.AsyncClient, model: str) -> dict[str, Any]:
    answer = await client.get("/v1/cache/stats", params={"model": model})
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["models"]
    return dict(found)


async def until(
    client: httpx.AsyncClient, model: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Heartbeats bring the figures."""
    async with asyncio.timeout(30):
        while True:
            found = await stats(client, model)
            if holds(found):
                return found
            await asyncio.sleep(POLL_S)


async def unload(client: httpx.AsyncClient, model: str) -> None:
    await client.post(f"/v1/models/{model}/unload")
    await until(client, model, lambda found: found["state"] == "unloaded")


async def test_every_dialect_says_what_was_cached(client: httpx.AsyncClient) -> None:
    _, tokens, _ = await chat(client, "plain", OTHER)
    talk = {"model": "plain", "temperature": 0}
    question = [{"role": "user", "content": QUESTION}]
    message = await client.post(
        "/v1/messages", json={**talk, "system": OTHER, "messages": question, "max_tokens": 5}
    )
    usage = message.json()["usage"]
    assert usage["cache_read_input_tokens"] == tokens - 1
    assert usage["input_tokens"] == 1
    response = await client.post(
        "/v1/responses",
        json={**talk, "instructions": OTHER, "input": QUESTION, "max_output_tokens": 16},
    )
    usage = response.json()["usage"]
    assert usage["input_tokens"] == tokens
    assert usage["input_tokens_details"]["cached_tokens"] == tokens - 1
    body = {**talk, "prompt": OTHER, "max_tokens": 2}
    await client.post("/v1/completions", json=body)
    usage = (await client.post("/v1/completions", json=body)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


async def test_a_variant_has_its_bases_cache(client: httpx.AsyncClient) -> None:
    answer, tokens, _ = await chat(client, "plain", OTHER)
    assert await chat(client, "variant", OTHER) == (answer, tokens, tokens - 1)


async def test_warm_prompts_are_there_for_the_first_request(client: httpx.AsyncClient) -> None:
    await client.post("/v1/models/kept/load", params={"wait": "true"})
    await until(client, "kept", lambda found: found["entries"] > 0)
    answer, tokens, cached = await chat(client, "kept", AGENT)
    assert tokens - cached < 30
    assert cached > 60
    assert answer == (await chat(client, "plain", AGENT))[0]


async def test_prompts_outlast_the_process(gateway: Daemon, client: httpx.AsyncClient) -> None:
    answer, tokens, _ = await chat(client, "kept", OTHER)
    await unload(client, "kept")
    found = await stats(client, "kept")
    assert found["disk"]["entries"] >= 1
    assert found["disk"]["bytes"] > 0
    assert found["entries"] == found["hits"] == 0
    assert await chat(client, "kept", OTHER) == (answer, tokens, tokens - 1)
    found = await until(client, "kept", lambda found: found["hits"] > 0)
    assert found["disk"]["hits"] >= 1
    (folder,) = (gateway.folder / "cache" / "mlx-gateway" / "prompts").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


async def test_clearing(client: httpx.AsyncClient) -> None:
    await chat(client, "plain", OTHER)
    answer = await client.delete("/v1/cache/prefix", params={"model": "other-name"})
    (cleared,) = answer.json()["models"]
    assert answer.json()["status"] == "cleared"
    assert answer.json()["rewarm_scheduled"] is False
    assert cleared["name"] == "plain"
    assert cleared["entries"] >= 1
    assert cleared["bytes"] > 0
    assert (await chat(client, "plain", OTHER))[2] == 0

    begins = {"model": "plain", "prefix": "<|im_start|>system\nYou are another"}
    answer = await client.delete("/v1/cache/prefix", params={**begins, "prefix": "elsewhere"})
    assert answer.json()["models"][0]["entries"] == 0
    answer = await client.delete("/v1/cache/prefix", params=begins)
    assert answer.json()["models"][0]["entries"] == 1

    await chat(client, "kept", OTHER)
    answer = await client.delete("/v1/cache", params={"model": "kept"})
    assert answer.json()["rewarm_scheduled"] is True
    found = await until(client, "kept", lambda found: found["entries"] == 1)
    assert found["disk"]["entries"] == 0
    assert (await chat(client, "kept", AGENT))[2] > 60

    await chat(client, "kept", OTHER)
    await unload(client, "kept")
    answer = await client.delete("/v1/cache")
    assert answer.json()["rewarm_scheduled"] is False
    by_name = {model["name"]: model for model in answer.json()["models"]}
    assert by_name.keys() == {"plain", "kept", "script"}
    assert by_name["kept"]["entries"] >= 1
    assert (await stats(client, "kept"))["disk"] == {
        "entries": 0,
        "bytes": 0,
        "hits": 0,
        "bad_files": 0,
    }
    assert (await stats(client, "kept"))["state"] == "unloaded"
    assert (await stats(client, "script"))["state"] == "unloaded"


async def test_who_may_see_and_clear(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/cache/stats", headers=TEAM)
    assert [model["name"] for model in answer.json()["models"]] == ["plain"]
    assert answer.json()["total"].keys() >= {"entries", "bytes", "hits", "misses"}
    answer = await client.get("/v1/cache/stats", params={"model": "kept"}, headers=TEAM)
    assert answer.status_code == 403
    for path in ("/v1/cache", "/v1/cache/prefix"):
        assert (await client.delete(path, headers=TEAM)).status_code == 403
        assert (await client.get(path)).status_code == 405
    answer = await client.delete("/v1/cache", params={"model": "nobody"})
    assert answer.status_code == 404


async def test_figures_are_metrics_too(client: httpx.AsyncClient) -> None:
    await chat(client, "plain", OTHER)
    await chat(client, "plain", OTHER)
    await until(client, "plain", lambda found: found["hits"] > 0)
    page = (await client.get("/metrics")).text
    assert 'mlx_gateway_prompt_cache_total{event="hit",model="plain"}' in page
    assert 'mlx_gateway_prompt_cache_disk_bytes{model="kept"}' in page
