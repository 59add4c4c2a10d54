"""The Anthropic dialect before the exchange: a body to the neutral request."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from engines import wire
from gateway.api.dialect import Defaults
from gateway.api.media import MediaRef
from gateway.api.messages import decode
from gateway.api.messages_encode import MessagesDecoded
from gateway.api.messages_prompt import signature
from gateway.errors import InvalidRequest, Unsupported
from gateway.residency import Priority
from tests.harness.decoded import text_call

TURNS = [{"role": "user", "content": "hello"}]
TOOL = {"name": "add", "description": "Adds", "input_schema": {"type": "object"}}
NEUTRAL_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds", "parameters": {"type": "object"}},
}


def decoded(**fields: Any) -> MessagesDecoded:
    body = {"model": "m", "max_tokens": 9, "messages": TURNS, **fields}
    return decode(json.dumps({key: value for key, value in body.items() if value != ...}).encode())


def generate(defaults: Defaults | None = None, **fields: Any) -> wire.Generate:
    return text_call(decoded(**fields), defaults)


def messages(*turns: tuple[str, Any], system: Any = None) -> list[dict[str, Any]]:
    given = [{"role": role, "content": content} for role, content in turns]
    return generate(messages=given, system=system).messages


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


# --- fields ---------------------------------------------------------------------------------------


def test_a_plain_request_takes_the_defaults_of_the_dialect() -> None:
    assert generate() == wire.Generate(7, TURNS, max_tokens=9)
    request = decoded()
    assert (request.model, request.stream, request.show_thinking) == ("m", False, True)


def test_everything_a_client_says_arrives() -> None:
    request = generate(
        Defaults(temperature=0.1, top_k=5, template_kwargs={"a": 1, "b": 1}),
        temperature=0.5,
        top_p=0.9,
        stop_sequences=["</done>"],
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"x": 1}}},
        chat_template_kwargs={"b": 2},
    )
    assert request == wire.Generate(
        7,
        TURNS,
        sampling=wire.Sampling(0.5, 0.9, 5),
        max_tokens=9,
        stop=("</done>",),
        template_kwargs={"a": 1, "b": 2},
        tools=[NEUTRAL_TOOL],
        tool_choice=wire.ToolChoice("required", None, False),
        format=wire.Format("json_schema", {"x": 1}),
        reasoning=wire.Reasoning(True, 1024, "high"),
    )


def test_a_model_has_parsers_and_defaults() -> None:
    request = generate(Defaults(temperature=0.1, parsers=wire.Parsers("hermes", "qwen3")))
    assert request.parsers == wire.Parsers("hermes", "qwen3")
    assert request.sampling.temperature == 0.1


def test_what_means_nothing_here_is_ignored() -> None:
    fields: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "cache_control": {"type": "ephemeral"},
        "mcp_servers": [],
        "container": None,
        "anything": {"else": [1]},
    }
    fields |= dict.fromkeys(("system", "stream", "temperature", "top_k", "tools", "thinking"))
    assert generate(**fields) == generate()


def test_the_wishes_of_a_request_arrive() -> None:
    request = decoded(priority="low", keep_alive=-1, timeout=5)
    assert (request.wish.priority, request.wish.keep_alive_s) == (Priority.LOW, -1)
    assert request.timeout_s == 5


@pytest.mark.parametrize(
    ("thinking", "expected", "shown"),
    [
        ({"type": "adaptive"}, wire.Reasoning(), True),
        ({"type": "adaptive", "display": "omitted"}, wire.Reasoning(), False),
        ({"type": "disabled"}, wire.Reasoning(False), True),
        ({"type": "enabled", "budget_tokens": 10}, wire.Reasoning(True, 10), True),
        ({"type": "enabled", "budget_tokens": 10.0}, wire.Reasoning(True, 10), True),
    ],
)
def test_thinking(thinking: dict[str, Any], expected: wire.Reasoning, shown: bool) -> None:
    assert generate(thinking=thinking).reasoning == expected
    assert decoded(thinking=thinking).show_thinking is shown


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, wire.ToolChoice()),
        ({"type": "auto"}, wire.ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, wire.ToolChoice(parallel=False)),
        ({"type": "any"}, wire.ToolChoice("required")),
        ({"type": "tool", "name": "add"}, wire.ToolChoice("named", "add")),
        ({"type": "none"}, wire.ToolChoice("none")),
    ],
)
def test_the_choice_among_tools(choice: Any, expected: wire.ToolChoice) -> None:
    request = generate(tools=[TOOL], tool_choice=choice)
    assert request.tool_choice == expected
    assert request.tools == ([] if expected.mode == "none" else [NEUTRAL_TOOL])


def test_tools_of_anthropics_own_are_left_out_and_noted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    search = {"type": "web_search_19990101", "name": "web_search", "max_uses": 3}
    with caplog.at_level(logging.WARNING, "gateway.messages"):
        for _ in range(3):
            assert generate(tools=[search, {"type": "custom", **TOOL}]).tools == [NEUTRAL_TOOL]
    assert [record.args for record in caplog.records] == [("web_search_19990101",)]


# --- turns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be brief.", "Be brief."),
        (
            [text("An agent.", cache_control={"type": "ephemeral"}), text("Brief.")],
            "An agent.\n\nBrief.",
        ),
        ("x-anthropic-billing-header: cc_version=1; cch=ab12;\nBe brief.", "Be brief."),
        ([text("x-anthropic-billing-header: cch=ab12;"), text("Be brief.")], "Be brief."),
        ("x-anthropic-billing-header: cch=ab12;", None),
        ("", None),
        ([], None),
    ],
)
def test_the_system_prompt_holds_nothing_that_changes_every_time(
    system: Any, expected: str | None
) -> None:
    head = [{"role": "system", "content": expected}] if expected else []
    assert messages(("user", "hello"), system=system) == [*head, *TURNS]


def test_a_system_message_in_the_middle_becomes_a_marked_text() -> None:
    assert messages(
        ("system", "Be kind."),
        ("user", "a"),
        ("system", [text("Stay.")]),
        ("user", "b"),
        system="Be brief.",
    ) == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "a\n<system-reminder>\nStay.\n</system-reminder>\nb"},
    ]


def test_a_round_trip_of_a_tool() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "times", "input": {"x": 6, "y": 7}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    call = {
        "id": "toolu_1",
        "type": "function",
        "function": {"name": "times", "arguments": {"x": 6, "y": 7}},
    }
    tool = {"role": "tool", "tool_call_id": "toolu_1", "name": "times"}
    turns = [("user", "six by seven"), ("assistant", [text("Running."), use])]
    head = [
        {"role": "user", "content": "six by seven"},
        {"role": "assistant", "content": "Running.", "tool_calls": [call]},
    ]
    # Results come before the text of their turn, wherever the client has put them.
    mixed = [text("thanks"), {**result, "content": [text("4"), text("2")]}]
    assert messages(*turns, ("user", mixed)) == [
        *head,
        {**tool, "content": "4\n2"},
        {"role": "user", "content": "thanks"},
    ]
    for content, error, expected in (
        ("42", False, "42"),
        ("too big", True, "Error: too big"),
        (None, None, ""),
    ):
        block = {**result, "content": content, "is_error": error}
        assert messages(*turns, ("user", [block])) == [*head, {**tool, "content": expected}]


def test_neighbouring_turns_of_one_role_are_joined() -> None:
    use = {"type": "tool_use", "id": "1", "name": "a", "input": {}}
    assert messages(
        ("user", "a"),
        ("user", "b"),
        ("assistant", "c"),
        ("assistant", [text("d"), use]),
        ("user", [{"type": "tool_result", "tool_use_id": "1"}]),
    )[:2] == [
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "c\nd",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "a", "arguments": {}}}
            ],
        },
    ]


@pytest.mark.parametrize(
    ("mark", "kept"),
    [
        (signature("I see."), True),
        (signature("other"), False),
        ("sig-from-afar", False),
        (None, False),
    ],
)
def test_only_our_own_unchanged_thoughts_go_back_into_the_prompt(
    mark: str | None, kept: bool
) -> None:
    thinking = {"type": "thinking", "thinking": "I see.", "signature": mark}
    redacted = {"type": "redacted_thinking", "data": "AAAA"}
    (_, answer, _) = messages(
        ("user", "a"), ("assistant", [thinking, redacted, text("b")]), ("user", "c")
    )
    own = {"reasoning_content": "I see."} if kept else {}
    assert answer == {"role": "assistant", "content": "b", **own}


def test_an_answer_goes_on_where_the_last_turn_ends() -> None:
    turns = [*TURNS, {"role": "assistant", "content": "The best answer is ("}]
    request = generate(messages=turns)
    assert request.messages == turns
    assert request.template_kwargs == {
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


# --- images ---------------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}
INLINE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


def test_images_are_noted_and_leave_a_part_where_they_were() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE, text("seen")]}
    request = decoded(
        messages=[
            {"role": "user", "content": [INLINE, text("look")]},
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [result]},
        ]
    )
    assert request.media == (
        MediaRef("data:image/png;base64,iVBORw0KGgo=", "messages[0].content[0]"),
        MediaRef("http://127.0.0.1/", "messages[2].content[0].content[0]"),
    )
    turns = text_call(request).messages
    assert turns[0]["content"] == [{"type": "image", "media": 0}, text("look")]
    assert turns[2]["content"] == [{"type": "image", "media": 1}, text("seen")]


def test_an_image_stands_between_the_texts_of_its_turn() -> None:
    turn = {"role": "user", "content": [text("a"), text("b"), IMAGE, text("c")]}
    request = decoded(messages=[turn, {"role": "user", "content": "d"}])
    (message,) = text_call(request).messages
    assert message["content"] == [text("a\nb"), {"type": "image", "media": 0}, text("c\nd")]


def test_a_failure_with_an_image_says_that_it_is_one() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE], "is_error": True}
    request = decoded(
        messages=[
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [result]},
        ]
    )
    content = text_call(request).messages[2]["content"]
    assert content == [text("Error: "), {"type": "image", "media": 0}]


# --- refusals -------------------------------------------------------------------------------------


def in_user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


PDF = {"type": "document", "source": {"type": "base64", "data": ""}}
USE = {"type": "tool_use", "id": "1", "name": "a", "input": {}}
DEEP: Any = 1
for _ in range(40):
    DEEP = {"a": DEEP}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": ...}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**10}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    (in_user({"type": "server_tool_use"}), "messages[0].content[0].type"),
    (in_user({"text": "x"}), "messages[0].content[0].type"),
    (in_user({"type": "text"}), "messages[0].content[0].text"),
    (in_user(text("x"), USE), "messages[0].content[1]"),
    (in_user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
    (
        in_user({"type": "tool_result", "tool_use_id": "toolu_9"}),
        "messages[0].content[0].tool_use_id",
    ),
    ({"system": [IMAGE]}, "system[0].type"),
    (in_user({"type": "image"}), "messages[0].content[0].source"),
    (
        in_user({"type": "image", "source": {"type": "file", "file_id": "f"}}),
        "messages[0].content[0].source.type",
    ),
    (in_user(*[IMAGE] * 17), "messages[0].content[16]"),
    ({"temperature": 1.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": 2**40}, "top_k"),
    ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a", "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a", "input_schema": DEEP}]}, "tools[0].input_schema"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice"),
    ({"output_format": {"type": "regex"}}, "output_format.type"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": DEEP}}},
        "output_config.format.schema",
    ),
    ({"chat_template_kwargs": {"a": 2**64}}, "chat_template_kwargs"),
    ({"keep_alive": -0.5}, "keep_alive"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[row[1] for row in REFUSED])
def test_bad_input_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decoded(**fields)
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        (in_user(PDF), "messages[0].content[0]", "'document'"),
        (
            {"messages": [{"role": "assistant", "content": [IMAGE]}]},
            "messages[0].content[0]",
            "'image'",
        ),
        (
            {"messages": [{"role": "system", "content": [IMAGE]}]},
            "messages[0].content[0]",
            "'image'",
        ),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", "mcp_servers"),
        ({"container": "c"}, "container", "container"),
    ],
)
def test_what_is_known_and_not_served_is_refused_by_name(
    fields: dict[str, Any], param: str, named: str
) -> None:
    with pytest.raises(Unsupported) as refused:
        decoded(**fields)
    assert refused.value.param == param
    assert named in refused.value.message
