"""A real gateway on the routes for vectors and ranking: the official client as the judge, and cases
as data."""

from __future__ import annotations

import asyncio
import base64
from array import array
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from engines.scripted_vectors import vector_of
from tests.harness.cases import Case, load, run
from tests.harness.daemon import Daemon, daemon, registry, scripted

pytestmark = pytest.mark.anyio

EMBEDDINGS = "/v1/embeddings"
SIZE = 8
LARGE = 4096

MODELS = [
    scripted("vectors", kind="embedding", vector_dim=SIZE, aliases=["text-embedding-3-small"]),
    scripted("short", kind="embedding", vector_dim=SIZE, context_length=4),
    scripted("large", kind="embedding", vector_dim=LARGE),
    scripted("slow", kind="embedding", vector_dim=SIZE, tokens_per_s=20),
    scripted("ranker", kind="rerank"),
    scripted("short-ranker", kind="rerank", context_length=4),
    scripted("chatty", deltas=5),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(registry(*MODELS), tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    url = f"{gateway.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("case", [*load("embeddings.yaml"), *load("rerank.yaml")], ids=str)
async def test_case(gateway: Daemon, case: Case) -> None:
    async with gateway.client() as client:
        await run(case, client)


# --- the official client --------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}])
async def test_vectors_of_texts(client: AsyncOpenAI, encoding: dict[str, Any]) -> None:
    """Without a format the client asks for base64 and decodes it."""
    texts = ["one little text", "another", "one little text"]
    answer = await client.embeddings.create(model="vectors", input=texts, **encoding)
    assert [item.index for item in answer.data] == [0, 1, 2]
    for item, text in zip(answer.data, texts, strict=True):
        assert item.embedding == pytest.approx(vector_of(text, SIZE), abs=1e-7)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)


async def test_base64_is_little_endian_float32(client: AsyncOpenAI) -> None:
    answer = await client.embeddings.create(
        model="vectors", input="a text", encoding_format="base64"
    )
    given: Any = answer.data[0].embedding
    values = array("f", base64.b64decode(given))
    assert list(values) == pytest.approx(vector_of("a text", SIZE), abs=1e-7)


async def test_shorter_vectors_have_length_1_too(client: AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="vectors", input=[[5, 6], [7]], dimensions=4)
    for item in answer.data:
        assert len(item.embedding) == 4
        assert sum(value * value for value in item.embedding) == pytest.approx(1)


async def test_errors_are_the_clients_own(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.embeddings.create(model="short", input="one two three four five")
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="nobody", input="x")


# --- large, slow and abandoned --------------------------------------------------------------------


@pytest.mark.parametrize("format", ["base64", "float"])
async def test_an_answer_larger_than_a_mailbox_arrives(gateway: Daemon, format: str) -> None:
    """A mailbox holds 4 MiB, and 600 vectors of 4096 values are 9.4 MiB."""
    inputs = [f"word{number}" for number in range(600)]
    async with gateway.client() as client:
        answer = await client.post(
            EMBEDDINGS, json={"model": "large", "input": inputs, "encoding_format": format}
        )
    assert answer.status_code == 200
    data = answer.json()["data"]
    assert [item["index"] for item in data] == list(range(600))
    for index in (0, 299, 599):
        given = data[index]["embedding"]
        values = given if format == "float" else array("f", base64.b64decode(given)).tolist()
        assert values == pytest.approx(vector_of(inputs[index], LARGE), abs=1e-7)


async def test_a_client_that_leaves_frees_its_lease(gateway: Daemon) -> None:
    words = " ".join(["word"] * 10_000)
    body = {"model": "slow", "input": [words, words]}
    async with gateway.client() as client:
        request = asyncio.create_task(client.post(EMBEDDINGS, json=body))
        await gateway.until_model("slow", leases=1)
        request.cancel()
        await asyncio.wait([request])
    await gateway.until_model("slow", leases=0, running=0)


async def test_a_request_is_cancelled_and_one_runs_out_of_time(gateway: Daemon) -> None:
    body = {"model": "slow", "input": [" ".join(["word"] * 10_000), "end"]}
    headers = {"x-request-id": "the-slow-one"}
    async with gateway.client() as client:
        request = asyncio.create_task(client.post(EMBEDDINGS, json=body, headers=headers))
        await gateway.until_model("slow", leases=1)
        assert (await client.delete("/v1/requests/the-slow-one")).status_code == 200
        answer = await request
        assert (answer.status_code, answer.json()["error"]["code"]) == (499, "cancelled")
        late = await client.post(EMBEDDINGS, json=body | {"timeout": 0.2})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    await gateway.until_model("slow", leases=0, running=0)
