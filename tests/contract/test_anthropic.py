"""A real gateway on Anthropic's routes: the official client as the judge, and cases as data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message

from tests.harness.cases import Case, events_of, load, run
from tests.harness.daemon import Daemon, daemon, registry, reply, script, scripted

pytestmark = pytest.mark.anyio

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

CALLED = {"get_weather": {"city": "Bergen"}, "get_time": {}}

MODELS = [
    scripted("model", deltas=5, description="Five words"),
    scripted("small", context_length=3, aliases=["claude-small"]),
    scripted("broken", fail_loads=1000),
    scripted("slow", prefill_s=2.0, deltas=2),
    scripted("huge", size_gb=100),
    scripted("thinker", deltas=TWO_CALLS, tool_parser="hermes", reasoning_parser="qwen3"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(*MODELS, server={"heartbeat_s": 0.2, "max_body_mb": 1})
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


def ask(text: str = "hello", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "model", "max_tokens": 64, "messages": messages, **fields}


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


# --- the official client --------------------------------------------------------------------------


async def test_a_message(client: AsyncAnthropic) -> None:
    message = await client.messages.create(**ask("three little words", system="Be brief."))
    assert text_of(message) == reply(5)
    assert (message.role, message.model, message.stop_reason) == ("assistant", "model", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 5)
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


async def test_a_stream_makes_the_same_message(client: AsyncAnthropic) -> None:
    async with client.messages.stream(**ask("three little words", system="Be brief.")) as stream:
        pieces = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    whole = await client.messages.create(**ask("three little words", system="Be brief."))
    assert "".join(pieces) == reply(5)
    assert [block.to_dict() for block in message.content] == [
        block.to_dict() for block in whole.content
    ]
    assert message.usage == whole.usage
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


async def test_thoughts_and_calls_go_back_and_forth(client: AsyncAnthropic) -> None:
    tools: Any = [{"name": name, "input_schema": {"type": "object"}} for name in CALLED]
    question: Any = {"role": "user", "content": "How warm is it in Bergen, and when?"}
    asked: Any = {"model": "thinker", "max_tokens": 64, "tools": tools}
    async with client.messages.stream(messages=[question], **asked) as stream:
        message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    uses = [block for block in message.content if block.type == "tool_use"]
    assert {use.name: use.input for use in uses} == CALLED
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens > 0
    results: Any = [
        {"type": "tool_result", "tool_use_id": use.id, "content": "as ever"} for use in uses
    ]
    answer = await client.messages.create(
        messages=[question, message.to_param(), {"role": "user", "content": results}], **asked
    )
    assert answer.usage.input_tokens > message.usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({"max_tokens": 2}, "word1 word2 ", "max_tokens", None),
        ({"stop_sequences": ["no such", "d2 w"]}, "word1 wor", "stop_sequence", "d2 w"),
    ],
)
async def test_why_it_stopped(
    client: AsyncAnthropic, fields: dict[str, Any], text: str, reason: str, sequence: str | None
) -> None:
    async with client.messages.stream(**ask(**fields)) as stream:
        streamed = await stream.get_final_message()
    for message in (streamed, await client.messages.create(**ask(**fields))):
        assert text_of(message) == text
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


@pytest.mark.parametrize(
    ("fields", "kind", "status", "code"),
    [
        ({"model": "modle"}, anthropic.NotFoundError, 404, "model_not_found"),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, 400, "invalid_request"),
        ({"model": "huge"}, anthropic.BadRequestError, 400, "model_too_large"),
        ({"model": "broken"}, anthropic.InternalServerError, 529, "load_failed"),
        (
            {"model": "small", "system": "more words than fit"},
            anthropic.BadRequestError,
            400,
            "context_length_exceeded",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_clients_own_kinds(
    client: AsyncAnthropic,
    fields: dict[str, Any],
    kind: type[anthropic.APIStatusError],
    status: int,
    code: str,
    stream: bool,
) -> None:
    with pytest.raises(kind) as failed:
        await client.messages.create(**ask(**fields), stream=stream)
    error = failed.value
    assert error.status_code == status
    assert error.request_id is not None
    assert isinstance(error.body, dict)
    assert error.body["request_id"] == error.request_id
    assert error.body["error"]["code"] == code


async def test_a_failure_in_the_middle_of_a_stream_is_raised(client: AsyncAnthropic) -> None:
    text = script("a ", "b ", {"raise": "the model is out of ideas"})
    async with client.messages.stream(**ask(text)) as stream:
        with pytest.raises(anthropic.APIStatusError, match="out of ideas") as failed:
            await stream.get_final_message()
    assert isinstance(failed.value.body, dict)
    assert failed.value.body["error"]["type"] == "api_error"


async def test_the_list_of_models_pages(client: AsyncAnthropic) -> None:
    names = [model["name"] for model in MODELS]
    page = await client.models.list(limit=2)
    assert ([model.id for model in page.data], page.has_more) == (names[:2], True)
    assert [model.id async for model in client.models.list(limit=2)] == names
    model = await client.models.retrieve("claude-small")
    assert (model.id, model.type, model.max_input_tokens) == ("small", "model", 3)
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("nothing/here")


# --- on the wire ----------------------------------------------------------------------------------


async def test_a_silent_stream_pings_inside_the_message_only(gateway: Daemon) -> None:
    body = ask(script("a ", {"sleep": 1.0}, "b "), model="slow", stream=True)
    async with gateway.client() as client:
        text = (await client.post("/v1/messages", json=body)).text
    before, _, after = text.partition("event: message_start")
    assert set(before.split("\n\n")) == {": waiting", ""}  # prefill: nothing has begun
    assert 'event: ping\ndata: {"type":"ping"}' in after
    assert ": waiting" not in after
    names = [name for name, _ in events_of(text)]
    assert names[-1] == "message_stop"


async def test_an_engine_that_dies_ends_the_stream_with_an_error_event(gateway: Daemon) -> None:
    body = ask(script("a ", {"exit": 3}), stream=True)
    async with gateway.client() as client:
        events = events_of((await client.post("/v1/messages", json=body)).text)
    name, error = events[-1]
    assert name == error["type"] == "error"
    assert error["error"]["code"] == "engine_crashed"
    assert "message_stop" not in [name for name, _ in events]


async def test_a_body_over_the_limit(gateway: Daemon) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/messages", json=ask("x" * 2**20))
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"


async def test_the_prompt_is_the_same_from_turn_to_turn(gateway: Daemon) -> None:
    """Claude Code's billing line differs each time; the prompt of the engine must not."""
    async with gateway.client() as client:
        counts = set()
        for number in ("1", "22 and more"):
            system = [
                {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
                {"type": "text", "text": "Be brief."},
            ]
            answer = await client.post("/v1/messages", json=ask(system=system))
            counts.add(answer.json()["usage"]["input_tokens"])
    assert counts == {3}


@pytest.mark.parametrize("case", load("messages.yaml"), ids=str)
async def test_case(gateway: Daemon, case: Case) -> None:
    async with gateway.client() as client:
        await run(case, client)
