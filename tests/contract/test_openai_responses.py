"""A real gateway on `/v1/responses`: OpenAI's client as the judge, and cases as data."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.harness.cases import Case, events_of, load, run
from tests.harness.daemon import (
    POLL_S,
    WAIT_TIMEOUT_S,
    Daemon,
    daemon,
    registry,
    reply,
    script,
    scripted,
)

pytestmark = pytest.mark.anyio

ROUTE = "/v1/responses"

TWO_CALLS = [
    "<think>",
    "Two ques",
    "tions.",
    "</think>",
    "I will look.",
    '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ber',
    'gen"}}\n</tool_call>',
    '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
]

CALLED = {"get_weather": '{"city": "Bergen"}', "get_time": "{}"}
TOOLS: Any = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False}
    for name in CALLED
]

MODELS = [
    scripted("model", deltas=5),
    scripted("small", context_length=3),
    scripted("broken", fail_loads=1000),
    scripted("slow", prefill_s=1.0, deltas=2),
    scripted("huge", size_gb=100),
    scripted("thinker", deltas=TWO_CALLS, tool_parser="hermes", reasoning_parser="qwen3"),
]

EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(*MODELS, server={"heartbeat_s": 0.2, "max_body_mb": 1})
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def frames(gateway: Daemon, **body: Any) -> list[tuple[str, Any]]:
    async with gateway.client() as client:
        answer = await client.post(ROUTE, json={"model": "model", "stream": True, **body})
    return events_of(answer.text)


async def until_over(client: AsyncOpenAI, response_id: str) -> Response:
    """As a client polls that knows no better."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            response = await client.responses.retrieve(response_id)
            if response.status not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(POLL_S)


# --- the official client --------------------------------------------------------------------------


async def test_a_response(client: AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="model", instructions="Be brief.", input="three little words", metadata={"a": "b"}
    )
    Response.model_validate(response.to_dict(), strict=True)
    assert response.output_text == reply(5)
    assert response.id.startswith("resp_")
    assert (response.status, response.error, response.incomplete_details) == (
        "completed",
        None,
        None,
    )
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (5, 5)


async def test_a_stream_makes_the_same_response(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="model", input="three little words") as stream:
        events = [event async for event in stream]
        streamed = await stream.get_final_response()
    whole = await client.responses.create(model="model", input="three little words")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == streamed.output_text == whole.output_text == reply(5)
    assert streamed.usage == whole.usage
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("summary", [None, "auto"])
async def test_thoughts_and_calls_go_back_and_forth(client: AsyncOpenAI, summary: Any) -> None:
    question: Any = {"role": "user", "content": "How warm is it in Bergen, and when?"}
    asked: Any = {
        "model": "thinker",
        "tools": TOOLS,
        "reasoning": {"summary": summary},
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    async with client.responses.stream(input=[question], **asked) as stream:
        streamed = await stream.get_final_response()
    response = await client.responses.create(input=[question], **asked)
    for output in (streamed.to_dict()["output"], response.to_dict()["output"]):
        thoughts, message, *calls = cast(list[Any], output)
        assert (thoughts["type"], message["type"]) == ("reasoning", "message")
        assert {call["name"]: call["arguments"] for call in calls} == CALLED
        (told,) = thoughts["summary" if summary else "content"]
        assert told["text"] == "Two questions."
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "as ever"}
        for item in response.output
        if item.type == "function_call"
    ]
    said: Any = [item.to_dict() for item in response.output]
    answer = await client.responses.create(input=[question, *said, *results], **asked)
    assert answer.usage is not None
    assert response.usage is not None
    assert answer.usage.input_tokens > response.usage.input_tokens
    assert response.usage.output_tokens_details.reasoning_tokens > 0


async def test_a_kept_response_is_continued(client: AsyncOpenAI) -> None:
    first = await client.responses.create(
        model="thinker", input="How warm is it in Bergen, and when?", tools=TOOLS
    )
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "as ever"}
        for item in first.output
        if item.type == "function_call"
    ]
    second = await client.responses.create(
        model="model", previous_response_id=first.id, input=results
    )
    third = await client.responses.create(
        model="model", previous_response_id=second.id, input="and now"
    )
    assert third.previous_response_id == second.id
    tokens = [response.usage.input_tokens for response in (first, second, third) if response.usage]
    assert tokens == sorted(set(tokens))
    # What the second one said, and two words more.
    assert tokens[2] == tokens[1] + 5 + 2
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="model", previous_response_id=third.id, input="x")


async def test_a_kept_response_is_read_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.responses.create(
        model="model", input=[{"role": "user", "content": word} for word in ("one", "two", "three")]
    )
    read = await client.responses.retrieve(made.id)
    assert read.to_dict() == made.to_dict()
    items = [item async for item in client.responses.input_items.list(made.id, limit=2)]
    texts = [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]
    assert texts == ["three", "two", "one"]
    again = await client.responses.create(
        model="model", input=[{"type": "item_reference", "id": str(items[0].id)}]
    )
    assert again.usage is not None
    assert again.usage.input_tokens == 1
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(made.id)


async def test_what_is_not_to_be_stored_is_not(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="model", input="hello", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_the_token_limit_makes_it_incomplete(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="model", input="hello", max_output_tokens=2) as stream:
        events = [event async for event in stream]
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output_text == "word1 word2 "


@pytest.mark.parametrize(
    ("fields", "kind", "status", "code"),
    [
        ({"model": "modle"}, openai.NotFoundError, 404, "model_not_found"),
        ({"temperature": 3}, openai.BadRequestError, 400, "invalid_request"),
        ({"truncation": "auto"}, openai.BadRequestError, 400, "unsupported_parameter"),
        ({"model": "huge"}, openai.BadRequestError, 400, "model_too_large"),
        ({"model": "broken"}, openai.InternalServerError, 503, "load_failed"),
        ({"previous_response_id": "resp_x"}, openai.NotFoundError, 404, "not_found"),
        (
            {"model": "small", "instructions": "more words than fit"},
            openai.BadRequestError,
            400,
            "context_length_exceeded",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_clients_own_kinds(
    client: AsyncOpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    status: int,
    code: str,
    stream: bool,
) -> None:
    asked: Any = {"model": "model", "input": "hello", **fields}
    with pytest.raises(kind) as failed:
        await client.responses.create(**asked, stream=stream)
    assert (failed.value.status_code, failed.value.code) == (status, code)


# --- on the wire ----------------------------------------------------------------------------------


async def test_every_event_is_one_that_the_client_knows(gateway: Daemon) -> None:
    for model in ("model", "thinker"):
        events = await frames(gateway, model=model, input="hello", tools=TOOLS, top_logprobs=2)
        for number, (name, data) in enumerate(events):
            assert name == data["type"]
            assert data["sequence_number"] == number
            EVENTS.validate_python(data, strict=False)


async def test_a_silent_stream_tells_that_it_goes_on(gateway: Daemon) -> None:
    events = await frames(gateway, model="slow", input=script("a ", {"sleep": 1.0}, "b "))
    names = [name for name, _ in events]
    assert names[0] == "response.created"
    assert names.count("response.in_progress") > 2
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert names[-1] == "response.completed"


async def test_an_engine_that_dies_ends_the_stream_with_a_failed_response(
    gateway: Daemon, client: AsyncOpenAI
) -> None:
    events = await frames(gateway, input=script("a ", {"exit": 3}))
    name, data = events[-1]
    assert name == "response.failed"
    assert (data["response"]["status"], data["response"]["error"]["code"]) == (
        "failed",
        "engine_crashed",
    )
    assert (await client.responses.retrieve(data["response"]["id"])).status == "failed"


# --- in the background ----------------------------------------------------------------------------


async def test_a_background_response_is_polled(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="slow", input="hello", background=True)
    assert made.status == "queued"
    assert made.output == []
    over = await until_over(client, made.id)
    assert (over.status, over.output_text) == ("completed", reply(2))


async def test_a_background_stream_outlives_its_client_and_is_resumed(
    client: AsyncOpenAI,
) -> None:
    text = script("a ", {"sleep": 0.5}, "b ", "c ")
    stream = await client.responses.create(model="model", input=text, background=True, stream=True)
    first = []
    async for event in stream:
        first.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    assert first[0].type == "response.created"
    response_id = first[0].response.id
    last = first[-1].sequence_number
    rest = [
        event
        async for event in await client.responses.retrieve(
            response_id, stream=True, starting_after=last
        )
    ]
    assert [event.sequence_number for event in rest] == list(range(last + 1, last + 1 + len(rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "a b c "
    again = [event async for event in await client.responses.retrieve(response_id, stream=True)]
    assert again == [*first, *rest]


async def test_a_background_response_is_cancelled(gateway: Daemon, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model="model", input=script("a ", {"sleep": 3000}), background=True, stream=True
    )
    events = aiter(stream)
    created = await anext(events)
    assert created.type == "response.created"
    while (await anext(events)).type != "response.output_text.delta":
        pass
    response_id = created.response.id
    assert (await client.responses.retrieve(response_id)).output_text == "a "
    cancelled = await client.responses.cancel(response_id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "a ")
    rest = [event.type async for event in events]
    assert rest[-1] == "error"
    assert (await client.responses.cancel(response_id)).status == "cancelled"
    assert (await client.responses.retrieve(response_id)).status == "cancelled"
    await gateway.until_model("model", leases=0)


async def test_a_background_response_is_deleted_while_it_runs(
    gateway: Daemon, client: AsyncOpenAI
) -> None:
    made = await client.responses.create(
        model="model", input=script("a ", {"sleep": 3000}), background=True
    )
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    await gateway.until_model("model", leases=0)


async def test_a_background_response_tells_why_it_failed(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="broken", input="hello", background=True)
    over = await until_over(client, made.id)
    assert over.status == "failed"
    assert over.error is not None
    assert over.error.to_dict()["code"] == "load_failed"


async def test_only_the_background_can_be_cancelled_or_streamed_again(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="model", input="hello")
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.retrieve(made.id, stream=True)


async def test_a_gateway_that_stops_ends_the_background(
    tmp_path: Path,
) -> None:
    document = registry(scripted("model"), server={"drain_s": 0.2})
    with daemon(document, tmp_path) as running:
        body = {"model": "model", "input": script("a ", {"sleep": 3000})}
        asked = {**body, "background": True, "stream": True}
        async with (
            running.client() as client,
            client.stream("POST", ROUTE, json=asked) as answer,
        ):
            text = ""
            async for piece in answer.aiter_text():
                if "output_text.delta" in piece and "output_text.delta" not in text:
                    running.signal(signal.SIGTERM)
                text += piece
        name, data = events_of(text)[-1]
        assert (name, data["response"]["error"]["code"]) == ("response.failed", "draining")
        assert await asyncio.to_thread(running.wait) == 0


async def test_a_response_belongs_to_the_key_that_made_it(tmp_path: Path) -> None:
    keys = [{"name": name, "key": f"the-key-of-{name}"} for name in ("mine", "yours")]
    document = registry(scripted("model"), server={"api_keys": keys})
    with daemon(document, tmp_path) as running:
        async with running.client() as client:
            mine, yours = ({"authorization": f"Bearer {key['key']}"} for key in keys)
            asked = {"model": "model", "input": script("a ", {"sleep": 3000}), "background": True}
            for body in ({"model": "model", "input": "hello"}, asked):
                answer = await client.post(ROUTE, json=body, headers=mine)
                path = f"{ROUTE}/{answer.json()['id']}"
                for method, end in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
                    other = await client.request(method, path + end, headers=yours)
                    assert other.status_code == 404
                assert (await client.post(f"{path}/cancel", headers=yours)).status_code == 404
                assert (await client.get(path, headers=mine)).status_code == 200
                continued = {
                    "model": "model",
                    "input": "x",
                    "previous_response_id": answer.json()["id"],
                }
                other = await client.post(ROUTE, json=continued, headers=yours)
                assert other.status_code == 404
                assert (await client.delete(path, headers=mine)).status_code == 200


async def test_what_is_kept_on_disk_is_continued_after_a_restart(tmp_path: Path) -> None:
    document = registry(scripted("model"), server={"responses_store": "disk"})
    ids: list[str] = []
    for _ in range(2):
        with daemon(document, tmp_path) as running:
            async with running.client() as client:
                body = {"model": "model", "input": "hello"}
                if ids:
                    body["previous_response_id"] = ids[-1]
                answer = await client.post(ROUTE, json=body)
                assert answer.status_code == 200, answer.text
                ids.append(answer.json()["id"])
                again = await client.get(f"{ROUTE}/{ids[0]}")
                assert again.json()["status"] == "completed"
    assert (tmp_path / "state" / "responses.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("case", load("responses.yaml"), ids=str)
async def test_case(gateway: Daemon, case: Case) -> None:
    async with gateway.client() as client:
        await run(case, client)
