"""The Responses dialect before the exchange: a body to the neutral request."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from engines import wire
from gateway.api.dialect import Defaults
from gateway.api.media import MediaRef
from gateway.api.responses import decode
from gateway.api.responses_encode import ResponsesDecoded
from gateway.api.responses_items import Item, sealed, warn_once
from gateway.errors import InvalidRequest, NotFound, Unsupported
from gateway.residency import Priority
from gateway.security.containers import MediaKind
from tests.harness.decoded import text_call

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "name": "add", "description": "Adds", "parameters": {"type": "object"}}
OTHER = {"type": "function", "name": "mul"}
NEUTRAL_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds", "parameters": {"type": "object"}},
}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x":1}'}
NEUTRAL_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "2"}
NEUTRAL_RESULT = {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "2"}


@dataclass
class Past:
    """What was said in response "resp_1"."""

    owner: str = "me"
    items: list[Item] = field(default_factory=list)

    def item(self, item_id: str) -> Item | None:
        return next((item for item in self.items if item.id == item_id), None)

    def turns(self, response_id: str) -> list[Item]:
        assert response_id == "resp_1"
        return self.items


def decoded(past: Past | None = None, **fields: Any) -> ResponsesDecoded:
    body = {"model": "m", "input": "hello", **fields}
    body = {key: value for key, value in body.items() if value != ...}
    return decode(json.dumps(body).encode(), past or Past())


def generate(
    defaults: Defaults | None = None, past: Past | None = None, **fields: Any
) -> wire.Generate:
    return text_call(decoded(past, **fields), defaults)


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return generate(input=list(items), **fields).messages


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


# --- fields ---------------------------------------------------------------------------------------


def test_a_plain_request_takes_the_defaults_of_the_dialect() -> None:
    assert generate() == wire.Generate(7, HELLO)
    request = decoded()
    assert (request.model, request.stream, request.store, request.background) == (
        "m",
        False,
        True,
        False,
    )
    assert (request.owner, request.previous) == ("me", None)


def test_everything_a_client_says_arrives() -> None:
    request = generate(
        Defaults(temperature=0.1, top_k=5, template_kwargs={"a": 1, "b": 1}),
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=9,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning={"effort": "high"},
        thinking_token_budget=1024,
        text={"format": {"type": "json_schema", "name": "x", "schema": {"x": 1}}},
        chat_template_kwargs={"b": 2},
        top_logprobs=3,
    )
    assert request == wire.Generate(
        7,
        HELLO,
        sampling=wire.Sampling(0.5, 0.9, 5),
        max_tokens=9,
        template_kwargs={"a": 1, "b": 2},
        tools=[NEUTRAL_TOOL],
        tool_choice=wire.ToolChoice("required", None, False),
        format=wire.Format("json_schema", {"x": 1}),
        reasoning=wire.Reasoning(None, 1024, "high"),
        logprobs=3,
    )


def test_a_model_has_parsers_and_defaults() -> None:
    parsers = wire.Parsers("hermes", "qwen3")
    request = generate(Defaults(temperature=0.1, max_tokens=5, parsers=parsers))
    assert (request.parsers, request.sampling.temperature, request.max_tokens) == (parsers, 0.1, 5)


def test_the_wishes_of_a_request_arrive() -> None:
    request = decoded(priority="low", keep_alive=-1, timeout=5)
    assert (request.wish.priority, request.wish.keep_alive_s) == (Priority.LOW, -1)
    assert request.timeout_s == 5


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning": {"effort": "none"}}, wire.Reasoning(enabled=False)),
        ({"reasoning": {"effort": "low"}}, wire.Reasoning(effort="low")),
        ({"chat_template_kwargs": {"enable_thinking": False}}, wire.Reasoning(enabled=False)),
        (
            {"enable_thinking": True, "reasoning": {"effort": "none"}},
            wire.Reasoning(enabled=True),
        ),
    ],
)
def test_how_the_model_thinks(fields: dict[str, Any], reasoning: wire.Reasoning) -> None:
    assert generate(**fields).reasoning == reasoning


def test_what_a_client_wants_to_be_told() -> None:
    quiet = decoded()
    assert (quiet.summary, quiet.sealed, generate().logprobs) == (False, False, None)
    include = ["reasoning.encrypted_content", "message.output_text.logprobs", "anything.else"]
    asked: dict[str, Any] = {"include": include, "reasoning": {"generate_summary": "auto"}}
    loud = decoded(**asked)
    assert (loud.summary, loud.sealed, generate(**asked).logprobs) == (True, True, 0)


def test_the_response_repeats_its_request() -> None:
    fields = decoded(
        instructions="Be brief.",
        metadata={"a": "b"},
        temperature=0.5,
        tools=[TOOL, {"type": "web_search"}],
        tool_choice={
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "add"}],
        },
        text={"format": {"type": "json_schema", "name": "x", "schema": {"x": 1}}},
    ).fields
    assert (fields["instructions"], fields["metadata"], fields["temperature"]) == (
        "Be brief.",
        {"a": "b"},
        0.5,
    )
    assert fields["tools"] == [{**TOOL, "strict": None}]
    assert fields["tool_choice"]["mode"] == "auto"
    assert fields["text"]["format"]["schema"] == {"x": 1}


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"input": ...}, InvalidRequest, "input"),
        ({"input": []}, InvalidRequest, "input"),
        ({"model": ""}, InvalidRequest, "model"),
        ({"temperature": 2.1}, InvalidRequest, "temperature"),
        ({"max_output_tokens": 0}, InvalidRequest, "max_output_tokens"),
        ({"top_logprobs": 21}, InvalidRequest, "top_logprobs"),
        ({"metadata": {str(n): "x" for n in range(17)}}, InvalidRequest, "metadata"),
        ({"truncation": "auto"}, Unsupported, "truncation"),
        ({"conversation": "conv_1"}, Unsupported, "conversation"),
        ({"prompt": {"id": "p"}}, Unsupported, "prompt"),
        ({"text": {"verbosity": "high"}}, Unsupported, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, Unsupported, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, InvalidRequest, "text.format.schema"),
        ({"background": True, "store": False}, InvalidRequest, "background"),
        ({"tools": [{"type": "function"}]}, InvalidRequest, "tools[0].name"),
        ({"tool_choice": "required"}, InvalidRequest, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, InvalidRequest, "tool_choice.name"),
        ({"tool_choice": {"type": "mcp"}}, Unsupported, "tool_choice.type"),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, Unsupported, "tools[0].type"),
    ],
)
def test_a_field_at_fault_is_named(
    fields: dict[str, Any], kind: type[InvalidRequest], param: str
) -> None:
    with pytest.raises(kind) as failed:
        decoded(**fields)
    assert failed.value.param == param


# --- tools ----------------------------------------------------------------------------------------


def test_hosted_tools_are_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "gateway.responses"):
        for _ in range(2):
            assert generate(tools=[{"type": "web_search"}, TOOL]).tools == [NEUTRAL_TOOL]
    assert [record.getMessage() for record in caplog.records] == [
        "tools of type 'web_search' are not served; left out"
    ]


def test_one_tool_by_name_is_one_call_of_it() -> None:
    request = generate(tools=[TOOL, OTHER], tool_choice={"type": "function", "name": "mul"})
    assert request.tool_choice == wire.ToolChoice("named", "mul", False)
    assert len(request.tools) == 2


def test_only_allowed_tools_are_shown() -> None:
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "add"}],
    }
    request = generate(tools=[OTHER, TOOL], tool_choice=allowed)
    assert request.tools == [NEUTRAL_TOOL]
    assert request.tool_choice.mode == "required"
    with pytest.raises(InvalidRequest, match="add"):
        generate(tools=[OTHER], tool_choice=allowed)


def test_no_tool_is_shown_when_none_may_be_called() -> None:
    assert generate(tools=[TOOL], tool_choice="none").tools == []


# --- the conversation -----------------------------------------------------------------------------


def test_instructions_and_leading_system_messages_are_one() -> None:
    assert messages(
        said("developer", "b"), said("system", "c"), said("user", "d"), instructions="a"
    ) == [{"role": "system", "content": "a\n\nb\n\nc"}, {"role": "user", "content": "d"}]


def test_a_system_message_in_mid_conversation_is_marked() -> None:
    assert messages(said("user", "a"), said("developer", "b"), said("user", "c")) == [
        {"role": "user", "content": "a\n\n<system-reminder>\nb\n</system-reminder>\n\nc"}
    ]


def test_a_turn_of_the_model_is_one_message() -> None:
    thoughts = [{"type": "reasoning_text", "text": "Hm."}]
    items: list[dict[str, Any]] = [
        said(
            "user", [{"type": "input_text", "text": "one "}, {"type": "input_text", "text": "two"}]
        ),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": thoughts},
        said("assistant", [{"type": "output_text", "text": "I add.", "annotations": []}]),
        CALL,
        RESULT,
        said("assistant", [{"type": "refusal", "refusal": "No more."}]),
    ]
    assert messages(*items) == [
        {"role": "user", "content": "one two"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "Hm.",
            "tool_calls": [NEUTRAL_CALL],
        },
        NEUTRAL_RESULT,
        {"role": "assistant", "content": "No more."},
    ]


@pytest.mark.parametrize(
    ("reasoning", "thoughts"),
    [
        ({"summary": [{"type": "summary_text", "text": "In short."}]}, "In short."),
        ({"summary": [], "encrypted_content": sealed("Länger.")}, "Länger."),
        ({"summary": [], "encrypted_content": "gAAAAA-of-another-service"}, None),
        ({"summary": [], "encrypted_content": "mlx-gateway-%%%"}, None),
    ],
)
def test_thoughts_come_back_in_many_forms(reasoning: dict[str, Any], thoughts: str | None) -> None:
    turn = messages({"type": "reasoning", **reasoning}, CALL)[0]
    assert turn.get("reasoning_content") == thoughts


def test_thoughts_without_a_turn_are_forgotten() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    assert messages(thought, said("user", "a"), said("assistant", "b")) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


def test_parallel_calls_are_of_one_turn_and_a_cut_one_is_left_out() -> None:
    second = {**CALL, "call_id": "c2", "arguments": ""}
    cut = {**CALL, "call_id": "c3", "arguments": '{"x', "status": "incomplete"}
    turn = messages(CALL, second, cut)
    assert [call["id"] for call in turn[0]["tool_calls"]] == ["c1", "c2"]
    assert turn[0]["tool_calls"][1]["function"]["arguments"] == {}


def test_records_of_hosted_tools_are_left_out() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    assert messages(said("user", "a"), search) == [{"role": "user", "content": "a"}]


def test_images_are_noted_kept_and_asked_for_again() -> None:
    shown = {"type": "input_image", "image_url": "data:,", "detail": "low"}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "look "}, shown]}
    request = decoded(input=[asked, CALL, {**RESULT, "output": [shown]}])
    assert request.media == (
        MediaRef("data:,", "input[0].content[1]"),
        MediaRef("data:,", "input[2].output[0]"),
    )
    turns = text_call(request).messages
    assert turns[0]["content"] == [{"type": "text", "text": "look "}, {"type": "image", "media": 0}]
    assert turns[2]["content"] == [{"type": "image", "media": 1}]
    kept = json.loads(request.items)
    assert kept[0]["content"][1] == shown
    assert kept[2]["output"] == [shown]
    past = Past(items=[msgspec.convert(kept[0], Item)])
    again = decoded(past, previous_response_id="resp_1")
    assert again.media == (MediaRef("data:,", "previous_response_id.content[1]"),)


@pytest.mark.parametrize(
    ("part", "kind", "url"),
    [
        ({"type": "input_video", "video_url": "data:,"}, "video", "data:,"),
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}},
            "audio",
            "data:audio/mp3;base64,AA",
        ),
    ],
)
def test_other_media_are_noted_and_kept(part: dict[str, Any], kind: MediaKind, url: str) -> None:
    request = decoded(input=[{"role": "user", "content": [part]}])
    assert request.media == (MediaRef(url, "input[0].content[0]", kind),)
    assert json.loads(request.items)[0]["content"] == [part]


def test_turns_with_images_are_joined() -> None:
    shown = {"type": "input_image", "image_url": "data:,"}
    request = decoded(input=[said("user", "a"), said("user", [shown]), said("user", "b")])
    (message,) = text_call(request).messages
    kinds = [part.get("text", part["type"]) for part in message["content"]]
    assert kinds == ["a", "image", "b"]


@pytest.mark.parametrize(
    ("item", "kind", "param"),
    [
        ({"role": "user"}, InvalidRequest, "input[0].content"),
        ({"type": "message", "content": "x"}, InvalidRequest, "input[0].role"),
        (said("user", [{"type": "input_image"}]), InvalidRequest, "input[0].content[0]"),
        (said("system", [{"type": "input_image"}]), InvalidRequest, "input[0].content[0]"),
        (
            said("user", [{"type": "input_image", "file_id": "f"}]),
            Unsupported,
            "input[0].content[0].file_id",
        ),
        (said("user", [{"type": "input_text"}]), InvalidRequest, "input[0].content[0].text"),
        ({"type": "local_shell_call"}, Unsupported, "input[0].type"),
        ({"type": "item_reference", "id": "no"}, NotFound, "input[0].id"),
        ({"id": "no"}, NotFound, "input[0].id"),
        ({**CALL, "name": None}, InvalidRequest, "input[0].name"),
        ({**CALL, "name": "x" * 257}, InvalidRequest, "input[0].name"),
        ({**CALL, "call_id": ""}, InvalidRequest, "input[0].call_id"),
        ({**CALL, "arguments": "{"}, InvalidRequest, "input[0].arguments"),
        (RESULT, InvalidRequest, "input[0].call_id"),
        ({**RESULT, "output": None}, InvalidRequest, "input[0].output"),
    ],
)
def test_an_item_at_fault_is_named(
    item: dict[str, Any], kind: type[InvalidRequest], param: str
) -> None:
    with pytest.raises(kind) as failed:
        messages(item)
    assert failed.value.param == param


def test_what_is_kept_comes_first_but_for_instructions() -> None:
    past = Past(items=[Item(role="user", content="a"), Item(role="assistant", content="b")])
    request = generate(past=past, previous_response_id="resp_1", instructions="Be brief.")
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        *HELLO,
    ]


def test_a_reference_is_the_item_itself() -> None:
    past = Past(items=[Item(id="msg_1", role="user", content="a")])
    request = decoded(past, input=[{"type": "item_reference", "id": "msg_1"}])
    assert text_call(request).messages == [{"role": "user", "content": "a"}]
    assert json.loads(request.items)[0]["id"] == "msg_1"


def test_items_are_listed_whole() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
    }
    parts = [{"type": "input_text", "text": "2"}]
    items = json.loads(
        decoded(
            input=[
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                thought,
                {**CALL, "arguments": {"x": 1}},
                {**RESULT, "output": parts},
                {"type": "web_search_call", "id": "ws_1"},
            ]
        ).items
    )
    assert [item["type"] for item in items] == [
        *("message", "message", "reasoning", "function_call", "function_call_output"),
        "web_search_call",
    ]
    assert all(item["id"] for item in items)
    assert items[0]["content"] == [{"type": "input_text", "text": "a"}]
    assert items[1]["content"] == [{"type": "output_text", "text": "b", "annotations": []}]
    assert items[3]["arguments"] == '{"x":1}'
    assert items[4]["output"] == parts
