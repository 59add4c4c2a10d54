"""Counting, cutting up and joining text over HTTP, of models that are loaded and that are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.daemon import Daemon, daemon, registry, scripted

pytestmark = pytest.mark.anyio

HERMES = Path(__file__).parents[1] / "fixtures" / "models" / "scripted-hermes"
MESSAGES = [{"role": "user", "content": "Say hello."}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
COUNT = "/v1/messages/count_tokens"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    models = registry(
        scripted("words", size_gb=1, deltas=2, context_length=1000),
        {"name": "hermes", "path": str(HERMES), "context_length": 4096},
        {"name": "gone", "path": "/no/such/folder"},
    )
    with daemon(models, tmp_path_factory.mktemp("tokens")) as running:
        yield running


async def post(gateway: Daemon, path: str, **body: Any) -> httpx.Response:
    async with gateway.client() as client:
        return await client.post(path, json=body)


async def ask(gateway: Daemon, path: str, **body: Any) -> Any:
    response = await post(gateway, path, **body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(("model", "length"), [("words", 1000), ("hermes", 4096)])
async def test_text_goes_there_and_back(gateway: Daemon, model: str, length: int) -> None:
    text = "Say hello. Twice, s'il te plaît ✅"
    cut = await ask(gateway, "/tokenize", model=model, prompt=text)
    assert cut["count"] == len(cut["tokens"]) > 0
    assert cut["max_model_len"] == length
    back = await ask(gateway, "/detokenize", model=model, tokens=cut["tokens"])
    assert back == {"prompt": text}
    assert (await gateway.model(model))["loads"] == 0


@pytest.mark.parametrize("model", ["words", "hermes"])
async def test_a_count_is_the_later_prompt_tokens(gateway: Daemon, model: str) -> None:
    listed = await ask(gateway, "/tokenize", model=model, messages=MESSAGES, tools=TOOLS)
    plain = await ask(gateway, COUNT, model=model, messages=MESSAGES)
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    with_tools = await ask(gateway, COUNT, model=model, messages=MESSAGES, tools=tools)
    loads = (await gateway.model(model))["loads"]
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, plain["input_tokens"]),
        ({"tools": TOOLS}, listed["count"]),
        ({"tools": TOOLS}, with_tools["input_tokens"]),
    )
    for fields, expected in cases:
        answer = await gateway.chat(model, "Say hello.", max_tokens=1, **fields)
        assert answer.json()["usage"]["prompt_tokens"] == expected
    assert (await gateway.model(model))["loads"] == loads + (not loads)
    # Now the engine itself answers, and says the same.
    again = await ask(gateway, COUNT, model=model, messages=MESSAGES, tools=tools)
    assert again == with_tools


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "says"),
    [
        ("/tokenize", {"model": "words"}, 400, "prompt", "either"),
        ("/tokenize", {"model": "words", "prompt": "a", "messages": MESSAGES}, 400, "prompt", ""),
        ("/tokenize", {"prompt": "a"}, 400, "model", "required"),
        ("/tokenize", {"model": "nobody", "prompt": "a"}, 404, "model", "nobody"),
        ("/tokenize", {"model": "gone", "prompt": "a"}, 503, None, "unavailable"),
        ("/detokenize", {"model": "hermes", "tokens": [-1]}, 400, "tokens[0]", ""),
        ("/detokenize", {"model": "hermes", "tokens": [999_999]}, 400, None, "999999"),
        ("/detokenize", {"model": "words", "tokens": [1]}, 400, None, "unknown"),
    ],
)
async def test_what_cannot_be_answered(
    gateway: Daemon, path: str, body: dict[str, Any], status: int, param: str | None, says: str
) -> None:
    response = await post(gateway, path, **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert says in error["message"]


async def test_count_tokens_speaks_anthropic(gateway: Daemon) -> None:
    response = await post(gateway, COUNT, model="nobody", messages=MESSAGES)
    assert response.status_code == 404
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "not_found_error"
    empty = await post(gateway, COUNT, model="words")
    assert (empty.status_code, empty.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_the_worker_is_gone_with_the_gateway(tmp_path: Path) -> None:
    with daemon(registry(scripted("words")), tmp_path) as running:
        await ask(running, "/tokenize", model="words", prompt="a b")
        assert len(running.engines()) == 1
