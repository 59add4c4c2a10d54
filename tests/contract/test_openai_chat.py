"""A real gateway on OpenAI's chat and completion routes: the official client as the judge, and
cases as data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from tests.harness.cases import Case, events_of, load, run
from tests.harness.daemon import Daemon, daemon, registry, reply, script, scripted

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"

MODELS = [
    scripted("model", deltas=5, aliases=["gpt-4o"]),
    scripted("calling", tool_parser="hermes", reasoning_parser="qwen3"),
    scripted("small", context_length=3),
    scripted("slow", tokens_per_s=20, deltas=100_000, max_concurrency=16),
    scripted("chunky", deltas=10, stream_interval=4),
    scripted("stuttering", tokens_per_s=0.5, deltas=["a", "b", "c"], stream_interval=100),
    scripted("sleeper", load_s=3),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(*MODELS, server={"heartbeat_s": 0.2, "max_body_mb": 1})
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    url = f"{gateway.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def ask(text: str = "hello", model: str = "model", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


async def accumulated(client: AsyncOpenAI, **fields: Any) -> ChatCompletion:
    """What the official client makes of a stream."""
    async with client.chat.completions.stream(**fields) as stream:
        try:
            return await stream.get_final_completion()
        except openai.LengthFinishReasonError as error:
            return error.completion


# --- cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*load("chat.yaml"), *load("completions.yaml")], ids=str)
async def test_case(gateway: Daemon, case: Case) -> None:
    async with gateway.client() as client:
        await run(case, client)


# --- the official client --------------------------------------------------------------------------


async def test_a_completion_and_a_stream_of_it(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**ask("three little words", "gpt-4o"))
    assert whole.choices[0].message.content == reply(5)
    assert (whole.model, whole.choices[0].finish_reason) == ("gpt-4o", "stop")
    assert whole._request_id is not None
    final = await accumulated(client, **ask("three little words", "gpt-4o", **USAGE))
    assert final.choices[0].message.content == reply(5)
    assert final.usage == whole.usage
    assert final.system_fingerprint == whole.system_fingerprint
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 5)


async def test_text_completions(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(model="model", prompt=["a", "b"], max_tokens=2)
    assert [(choice.index, choice.text) for choice in whole.choices] == [
        (0, reply(2)),
        (1, reply(2)),
    ]
    texts = ["", ""]
    ids = set()
    stream = await client.completions.create(
        model="model", prompt=["a", "b"], max_tokens=2, stream=True
    )
    async for chunk in stream:
        ids.add(chunk.id)
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [reply(2), reply(2)]
    assert len(ids) == 1


async def test_errors_are_those_that_the_client_knows(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(**ask(model="nobody"))
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(**ask(n=0))
    assert (bad.value.code, bad.value.param) == ("invalid_request", "n")


async def test_a_failure_in_a_stream_reaches_the_client(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        **ask(script("a ", {"raise": "broken on purpose"})), stream=True
    )
    with pytest.raises(openai.APIError, match="broken on purpose"):
        async for _ in stream:
            pass


# --- reasoning, calls, choices, log-probabilities -------------------------------------------------

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "wait"}},
]
LOOK = '<tool_call>{"name": "look", "arguments": {"at": "</tool_call>"}}</tool_call>'
WAIT = '<tool_call>{"name": "wait", "arguments": {}}</tool_call>'
THOUGHT = ["<think>", "which ", "one", "</think>"]
BOTH = script(*THOUGHT, "Both.", LOOK[:30], LOOK[30:], WAIT)


def calling(text: str, **fields: Any) -> dict[str, Any]:
    return ask(text, "calling", tools=TOOLS, **fields)


def shown(message: Any) -> dict[str, Any]:
    """A message without the ids of its calls, which are new every time."""
    found: dict[str, Any] = message.to_dict()
    calls = found.get("tool_calls") or []
    ids = [call.pop("id") for call in calls]
    assert all(call_id.startswith("call_") for call_id in ids)
    assert len(set(ids)) == len(ids)
    found["tool_calls"] = [
        (call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]
    return {key: value for key, value in found.items() if value not in (None, [])}


LOOKED, WAITED = ("look", '{"at": "</tool_call>"}'), ("wait", "{}")
TRACE = {"reasoning": "which one", "reasoning_content": "which one"}
TEXT = {"role": "assistant", "content": "Both."}

MESSAGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "reasoning, text and two calls": (
        calling(BOTH),
        {**TEXT, **TRACE, "tool_calls": [LOOKED, WAITED]},
        "tool_calls",
    ),
    "calls alone": (
        calling(script(LOOK, WAIT)),
        {"role": "assistant", "tool_calls": [LOOKED, WAITED]},
        "tool_calls",
    ),
    "one call at most": (
        calling(BOTH, parallel_tool_calls=False),
        {**TEXT, **TRACE, "tool_calls": [LOOKED]},
        "tool_calls",
    ),
    "no call is wanted": (
        calling(script("Both.", WAIT), tool_choice="none"),
        {"role": "assistant", "content": f"Both.{WAIT}"},
        "stop",
    ),
    "a trace that was cut": (
        calling(script(*THOUGHT, "Both."), max_completion_tokens=2),
        {"role": "assistant", "reasoning": "which", "reasoning_content": "which"},
        "length",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_stream_makes_the_message_that_a_body_has(client: AsyncOpenAI, name: str) -> None:
    fields, wanted, reason = MESSAGES[name]
    whole = await client.chat.completions.create(**fields)
    final = await accumulated(client, **fields)
    for choice in (whole.choices[0], final.choices[0]):
        found = shown(choice.message)
        content = found.pop("content", "").strip()  # an empty one in a stream is null in a body
        assert {**found, **({"content": content} if content else {})} == wanted
        assert choice.finish_reason == reason


async def test_a_call_without_text_has_no_content(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**calling(script(WAIT)))
    assert whole.choices[0].message.content is None
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None


@pytest.mark.parametrize("choice", ["required", TOOLS[1]])
async def test_a_call_that_cannot_be_forced_is_refused(client: AsyncOpenAI, choice: Any) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await client.chat.completions.create(**calling(script(WAIT), tool_choice=choice))
    assert (error.value.param, error.value.code) == ("tool_choice", "tool_choice_unsupported")


async def test_reasoning_is_counted(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**calling(BOTH))
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    reasoning_tokens = whole.usage.completion_tokens_details.reasoning_tokens
    assert reasoning_tokens is not None
    assert 0 < reasoning_tokens < whole.usage.completion_tokens


async def test_several_choices(client: AsyncOpenAI) -> None:
    fields = ask(n=3, **USAGE)
    final = await accumulated(client, **fields)
    whole = await client.chat.completions.create(**ask(n=3))
    for answer in (whole, final):
        found = [(c.index, c.message.content, c.finish_reason) for c in answer.choices]
        assert found == [(index, reply(5), "stop") for index in range(3)]
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1, 15)


async def test_log_probabilities(client: AsyncOpenAI) -> None:
    fields = ask(logprobs=True, top_logprobs=2)
    whole = await client.chat.completions.create(**fields)
    final = await accumulated(client, **fields)
    for choice in (whole.choices[0], final.choices[0]):
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(token.token for token in choice.logprobs.content) == reply(5)
        for token in choice.logprobs.content:
            assert token.logprob <= 0
            assert len(token.top_logprobs) == 2
            assert token.bytes == list(token.token.encode())


async def test_log_probabilities_of_text(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(model="model", prompt="Say", logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == whole.choices[0].text == reply(5)
    assert logprobs.text_offset == [0, 6, 12, 18, 24]
    assert [len(top) for top in logprobs.top_logprobs or []] == [2] * 5


async def test_the_prompt_of_a_text_completion_is_the_text(client: AsyncOpenAI) -> None:
    asked = script("a ", "b ", *THOUGHT, WAIT)
    whole = await client.completions.create(model="calling", prompt=asked)
    assert whole.choices[0].text == f"a b {''.join(THOUGHT)}{WAIT}"


# --- the time of a request ------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["slow", "sleeper"])
async def test_a_timeout_before_the_answer_is_a_status(gateway: Daemon, model: str) -> None:
    answer = await gateway.chat(model, timeout=0.3)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
    assert "0.3 s" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    await gateway.until_model(model, leases=0, waiting=0)


async def test_a_timeout_within_a_stream_is_an_event(gateway: Daemon) -> None:
    async with gateway.stream("slow", timeout=1) as stream:
        await stream.until_text()
        await stream.rest()
    stream.assert_failed("timeout")
    await gateway.until_model("slow", leases=0)


async def test_a_timeout_ends_all_calls_of_a_request(gateway: Daemon) -> None:
    async with gateway.client() as client:
        body = {"model": "slow", "prompt": ["a", "b", "c"], "timeout": 0.5}
        answer = await client.post(COMPLETIONS, json=body)
    assert answer.status_code == 504
    await gateway.until_model("slow", leases=0, waiting=0)


async def test_an_answer_in_time_is_not_disturbed(gateway: Daemon) -> None:
    async with gateway.stream("model", timeout=60) as stream:
        (await stream.rest()).assert_complete(reply(5))


# --- several prompts ------------------------------------------------------------------------------


async def test_a_client_that_leaves_ends_all_calls_of_its_request(gateway: Daemon) -> None:
    body = {"model": "slow", "prompt": ["a"] * 16, "stream": True}
    async with gateway.client() as client, client.stream("POST", COMPLETIONS, json=body) as answer:
        seen = set()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                seen.add(json.loads(line.removeprefix("data: "))["choices"][0]["index"])
            if len(seen) == 16:
                break
        assert (await gateway.model("slow"))["leases"] == 16
    await gateway.until_model("slow", leases=0, waiting=0)


async def test_one_prompt_that_fails_fails_the_request(gateway: Daemon) -> None:
    body = {"model": "small", "prompt": ["one", "far too many words"], "stream": True}
    async with gateway.client() as client:
        answer = await client.post(COMPLETIONS, json=body)
    events = [data for _, data in events_of(answer.text)] if answer.status_code == 200 else []
    error = events[-1]["error"] if events else answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    await gateway.until_model("small", leases=0, waiting=0)


# --- larger events --------------------------------------------------------------------------------


async def test_tokens_are_joined_as_the_entry_says(gateway: Daemon) -> None:
    async with gateway.stream("chunky") as stream:
        (await stream.rest()).assert_complete(reply(10))
    pieces = [frame["choices"][0]["delta"].get("content") for frame in stream.frames]
    words = [len(piece.split()) for piece in pieces if piece]
    assert words == [1, 4, 4, 1]


async def test_text_that_is_held_is_not_held_for_long(gateway: Daemon) -> None:
    async with gateway.stream("stuttering") as stream:
        async with asyncio.timeout(30):
            while stream.text != "ab":
                assert await stream.next() is not None
        assert stream.finish_reasons == []
        (await stream.rest()).assert_complete("abc")
