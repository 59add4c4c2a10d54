"""Forced calls and formats of a real model through the whole gateway, by the official clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jsonschema
import openai
import pytest
from anthropic import AsyncAnthropic, BadRequestError
from openai import AsyncOpenAI

from tests.harness.daemon import Daemon, daemon, registry
from tests.real.test_parsing import TOOLS
from tests.real.test_text_engine import HERMES

pytestmark = pytest.mark.anyio

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "it", "strict": True, "schema": SCHEMA},
}
FUNCTIONS = [each["function"] for each in TOOLS]
PARAMETERS = {each["name"]: each["parameters"] for each in FUNCTIONS}
HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0}
"""The field of Anthropic's API that its client knows no more."""
SAID: dict[str, Any] = {"model": "hermes", "messages": HELLO, "max_tokens": 120}
ASKED = {**SAID, **GREEDY}
BY_NAME = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry({"name": "hermes", "path": str(HERMES)})
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"{gateway.url}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(gateway: Daemon) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


def check(name: str, arguments: Any) -> None:
    jsonschema.validate(arguments, PARAMETERS[name])


def answered(message: Any) -> list[Any]:
    """The blocks of an answer; this model may think first."""
    return [block for block in message.content if block.type != "thinking"]


@pytest.mark.parametrize("choice", ["required", BY_NAME])
async def test_a_call_is_forced(client: AsyncOpenAI, choice: Any) -> None:
    fields = {**ASKED, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    whole = await client.chat.completions.create(**fields)
    (call,) = whole.choices[0].message.tool_calls
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.content is None
    check(call.function.name, json.loads(call.function.arguments))
    assert call.function.name == "get_time" or choice is not BY_NAME

    pieces = [each async for each in await client.chat.completions.create(**fields, stream=True)]
    deltas = [each for piece in pieces for each in piece.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == call.function.name
    said = "".join(each.function.arguments or "" for each in deltas)
    assert said == call.function.arguments
    assert pieces[-1].choices[0].finish_reason == "tool_calls"


async def test_an_answer_has_its_format(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**ASKED, response_format=FORMAT)
    jsonschema.validate(json.loads(whole.choices[0].message.content), SCHEMA)
    assert whole.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(**ASKED, response_format=FORMAT, stream=True)
    said = "".join([each.choices[0].delta.content or "" async for each in stream])
    assert said == whole.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "possible"),
    [
        ({"guided_regex": "[ab]{2}"}, {"aa", "ab", "ba", "bb"}),
        ({"guided_choice": ["yes", 'no "', "<tool_call>"]}, {"yes", 'no "', "<tool_call>"}),
        ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, {"x", "y"}),
        ({"structured_outputs": {"json": '{"const": [1, "é"]}'}}, {'[1,"é"]', '[1, "é"]'}),
    ],
)
async def test_formats_by_the_names_of_other_servers(
    client: AsyncOpenAI, fields: dict[str, Any], possible: set[str]
) -> None:
    whole = await client.chat.completions.create(**ASKED, extra_body=fields)
    assert whole.choices[0].message.content in possible
    plain = {**ASKED, "prompt": "Say"}
    del plain["messages"]
    text = await client.completions.create(**plain, extra_body=fields)
    assert text.choices[0].text in possible


async def test_a_schema_that_cannot_be_enforced_is_refused(client: AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(**ASKED, response_format=wanted, stream=stream)
        assert "$.properties.a.uniqueItems" in error.value.message
        assert error.value.code == "unsupported_parameter"


async def test_responses_keep_to_both_too(client: AsyncOpenAI) -> None:
    fields: dict[str, Any] = {"model": "hermes", "input": "Say hello.", "temperature": 0}
    text: Any = {"format": {"type": "json_schema", "name": "it", "schema": SCHEMA}}
    answer = await client.responses.create(**fields, text=text)
    jsonschema.validate(json.loads(answer.output_text), SCHEMA)
    tools: Any = [{"type": "function", **each} for each in FUNCTIONS]
    answer = await client.responses.create(**fields, tools=tools, tool_choice="required")
    calls = [each for each in answer.output if each.type == "function_call"]
    assert calls
    for call in calls:
        check(call.name, json.loads(call.arguments))


@pytest.mark.parametrize("kind", ["any", "tool"])
async def test_messages_call_what_they_must(claude: AsyncAnthropic, kind: str) -> None:
    tools: Any = [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS]
    choice: Any = {"type": kind, "disable_parallel_tool_use": True}
    if kind == "tool":
        choice["name"] = "get_time"
    fields = {**SAID, "tools": tools, "tool_choice": choice, "extra_body": GREEDY}
    async with claude.messages.stream(**fields) as stream:
        streamed: Any = await stream.get_final_message()
    whole = await claude.messages.create(**fields)
    for message in (streamed, whole):
        (block,) = answered(message)
        assert block.type == "tool_use"
        assert message.stop_reason == "tool_use"
        assert block.name == "get_time" or kind == "any"
        check(block.name, block.input)


async def test_messages_have_their_format(claude: AsyncAnthropic) -> None:
    output: dict[str, Any] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    wanted = {**GREEDY, "output_config": output}
    message = await claude.messages.create(**SAID, extra_body=wanted)
    (block,) = answered(message)
    assert block.type == "text"
    jsonschema.validate(json.loads(block.text), SCHEMA)
    output["format"]["schema"] = {"not": {}}
    with pytest.raises(BadRequestError, match=r"\$\.not"):
        await claude.messages.create(**SAID, extra_body=wanted)
