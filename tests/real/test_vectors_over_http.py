"""Embeddings, ranking and text through a whole gateway with room for one model at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from demo import minilm
from demo.models import Cache
from tests.harness.daemon import Daemon, daemon, registry

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

FIXTURES = Path(__file__).parents[1] / "fixtures"
VECTORS = FIXTURES / "vectors"
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    name = minilm.RECIPE.name
    models: list[dict[str, Any]] = [
        {"name": "minilm", "path": str(Cache().ensure([name])[name])},
        {"name": "ranker", "path": str(VECTORS / "bert-rerank")},
        {"name": "yes-no", "path": str(VECTORS / "qwen3-rerank"), "kind": "rerank"},
        {"name": "text", "path": str(FIXTURES / "models" / "random-nano"), "kv_memory_gb": 0.1},
    ]
    with daemon(registry(*models, budget_gb=0.6), tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    url = f"{gateway.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


async def rank(gateway: Daemon, model: str, wanted: dict[str, Any]) -> list[float]:
    """The scores in the order of the documents."""
    body = {
        "model": model,
        "query": wanted["pairs"][0][0],
        "documents": [document for _, document in wanted["pairs"]],
    }
    async with gateway.client() as client:
        answer = await client.post("/v1/rerank", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    return [score for _, score in sorted((r["index"], r["relevance_score"]) for r in results)]


async def test_kinds_are_found_in_the_files(gateway: Daemon) -> None:
    status = await gateway.status()
    kinds = {model["name"]: model["kind"] for model in status["models"]}
    assert kinds == {"minilm": "embedding", "ranker": "rerank", "yes-no": "rerank", "text": "text"}


async def test_vectors_of_minilm(gateway: Daemon, client: AsyncOpenAI) -> None:
    wanted = json.loads((VECTORS / "minilm.json").read_text())
    answer = await client.embeddings.create(model="minilm", input=wanted["texts"])
    found = np.array([item.embedding for item in answer.data])
    assert np.abs(found - np.array(wanted["vectors"])).max() < TOLERANCE
    async with gateway.client() as plain:
        asked = await plain.post("/tokenize", json={"model": "minilm", "prompt": "bread"})
    tokens = asked.json()["tokens"]
    twice = await client.embeddings.create(model="minilm", input=[tokens, tokens[1:-1]])
    text = await client.embeddings.create(model="minilm", input="bread")
    for item in twice.data:
        assert item.embedding == pytest.approx(text.data[0].embedding, abs=TOLERANCE)


async def test_each_kind_makes_room_for_the_other(gateway: Daemon, client: AsyncOpenAI) -> None:
    wanted = json.loads((VECTORS / "bert-rerank" / "reference.json").read_text())
    await client.embeddings.create(model="minilm", input="hello")
    assert await rank(gateway, "ranker", wanted) == pytest.approx(wanted["scores"], abs=TOLERANCE)
    assert (await gateway.model("minilm"))["state"] == "unloaded"
    both = await asyncio.gather(
        client.embeddings.create(model="minilm", input=["hello", "world"]),
        rank(gateway, "ranker", wanted),
        client.embeddings.create(model="minilm", input="hello"),
    )
    assert both[1] == pytest.approx(wanted["scores"], abs=TOLERANCE)
    assert both[0].data[0].embedding == pytest.approx(both[2].data[0].embedding, abs=TOLERANCE)
    await client.chat.completions.create(
        model="text", messages=[{"role": "user", "content": "hello"}], max_tokens=2
    )
    status = await gateway.until(lambda status: not any(m["leases"] for m in status["models"]))
    memory = status["memory"]
    assert memory["committed_bytes"] <= memory["budget_bytes"]


async def test_a_text_that_is_too_long_is_told_by_the_model(gateway: Daemon) -> None:
    body = {"model": "minilm", "input": ["short", "bread " * 300]}
    async with gateway.client() as client:
        answer = await client.post("/v1/embeddings", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "context_length_exceeded",
        )
        assert "input[1] has 302 tokens, and this model takes 256" in answer.text
        cut = await client.post("/v1/embeddings", json=body | {"truncate": True})
        assert cut.json()["usage"]["prompt_tokens"] == 256 + 3
