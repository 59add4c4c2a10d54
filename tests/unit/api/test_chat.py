"""The chat dialect, from a body to the neutral request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import wire
from gateway.api.chat import decode
from gateway.api.dialect import Decoded, Defaults
from gateway.api.media import MediaRef
from gateway.errors import GatewayError, InvalidRequest, Unsupported
from gateway.residency import Priority
from gateway.security.containers import MediaKind
from gateway.supervisor.setup import PLAIN, Wish
from tests.harness.decoded import text_call

MESSAGES = [{"role": "user", "content": "hello"}]


def decoded(**fields: Any) -> Decoded:
    return decode(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode())


def generate(defaults: Defaults | None = None, **fields: Any) -> wire.Generate:
    request = text_call(decoded(**fields), defaults)
    assert wire.encode(request)
    return request


def refused(**fields: Any) -> GatewayError:
    with pytest.raises(InvalidRequest) as error:
        generate(**fields)
    return error.value


# --- fields ---------------------------------------------------------------------------------------


def test_a_plain_request_takes_the_defaults_of_the_dialect() -> None:
    assert generate() == wire.Generate(7, MESSAGES)
    request = decoded()
    assert (request.model, request.stream, request.include_usage) == ("m", False, False)
    assert (request.others, request.n, request.timeout_s, request.wish) == ((), 1, None, PLAIN)


def test_everything_a_client_says_arrives() -> None:
    request = generate(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=42,
        presence_penalty=-1,
        frequency_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "6": 1.5},
        max_tokens=5,
        n=3,
        stop=["a", "b"],
        chat_template_kwargs={"think": False},
    )
    assert request.sampling == wire.Sampling(
        0, 0.5, 40, 0.1, 42, -1, 0.5, 1.1, logit_bias={5: -100, 6: 1.5}
    )
    assert (request.max_tokens, request.n, request.stop) == (5, 3, ("a", "b"))
    assert request.template_kwargs == {"think": False}


def test_other_spellings_of_the_same() -> None:
    assert generate(stop="a").stop == ("a",)
    assert generate(top_k=-1).sampling.top_k == 0
    assert generate(max_tokens=50, max_completion_tokens=4).max_tokens == 4
    assert generate(max_tokens=5.0, logit_bias={"5": 1}).sampling.logit_bias == {5: 1}
    assert decoded(stream=True, stream_options={"include_usage": True}).include_usage


def test_a_model_has_defaults_and_a_client_goes_before_them() -> None:
    parsers = wire.Parsers("hermes", None)
    defaults = Defaults(0.7, 0.9, 20, 0.05, 100, {"think": True, "tools": []}, parsers)
    request = generate(defaults)
    assert request.sampling == wire.Sampling(0.7, 0.9, 20, 0.05)
    assert (request.max_tokens, request.parsers) == (100, parsers)
    request = generate(
        defaults,
        temperature=0,
        top_p=1,
        top_k=0,
        min_p=0,
        max_completion_tokens=5,
        max_tokens=6,
        chat_template_kwargs={"think": False},
    )
    assert request.sampling == wire.Sampling(0, 1, 0, 0)
    assert request.max_tokens == 5
    assert request.template_kwargs == {"think": False, "tools": []}


def test_what_a_request_asks_of_the_gateway() -> None:
    request = decoded(timeout=1.5, keep_alive=60, priority="low")
    assert (request.timeout_s, request.wish) == (1.5, Wish(Priority.LOW, 60))
    assert decoded(keep_alive=-1).wish == Wish(keep_alive_s=-1)


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_are_asked_for_in_two_fields(
    fields: dict[str, Any], logprobs: int | None
) -> None:
    assert generate(**fields).logprobs == logprobs


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, wire.Format()),
        ({"response_format": {"type": "json_object"}}, wire.Format("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
                }
            },
            wire.Format("json_schema", SCHEMA),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            wire.Format("json_object"),
        ),
        ({"guided_json": SCHEMA}, wire.Format("json_schema", SCHEMA)),
        ({"guided_regex": "a+"}, wire.Format("regex", "a+")),
        ({"guided_grammar": 'start: "a"'}, wire.Format("lark", 'start: "a"')),
        ({"guided_json": '{"type": "null"}'}, wire.Format("json_schema", {"type": "null"})),
        ({"guided_choice": ["a", 'b"']}, wire.Format("lark", 'start: "a" | "b\\""')),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            wire.Format("json_schema", SCHEMA),
        ),
        ({"structured_outputs": {}}, wire.Format()),
        ({"structured_outputs": {"json": SCHEMA}}, wire.Format("json_schema", SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, wire.Format("json_object")),
        ({"structured_outputs": {"regex": "a+"}}, wire.Format("regex", "a+")),
        ({"structured_outputs": {"choice": ["a"]}}, wire.Format("lark", 'start: "a"')),
        ({"structured_outputs": {"grammar": "root ::= x"}}, wire.Format("lark", "root ::= x")),
    ],
)
def test_formats(fields: dict[str, Any], wanted: wire.Format) -> None:
    assert generate(**fields).format == wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, wire.Reasoning()),
        ({"reasoning_effort": "high"}, wire.Reasoning(effort="high")),
        ({"reasoning_effort": "none"}, wire.Reasoning(enabled=False)),
        ({"thinking_token_budget": 0}, wire.Reasoning(budget_tokens=0)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, wire.Reasoning(enabled=False)),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, wire.Reasoning()),
        (
            {"enable_thinking": True, "reasoning_effort": "none"},
            wire.Reasoning(enabled=True),
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            wire.Reasoning(enabled=False),
        ),
    ],
)
def test_reasoning(fields: dict[str, Any], wanted: wire.Reasoning) -> None:
    assert generate(**fields).reasoning == wanted


def test_a_model_may_have_its_thinking_switched_off() -> None:
    defaults = Defaults(template_kwargs={"enable_thinking": False})
    assert generate(defaults).reasoning == wire.Reasoning(enabled=False)
    request = generate(defaults, chat_template_kwargs={"enable_thinking": True})
    assert request.reasoning == wire.Reasoning(enabled=True)


# --- messages -------------------------------------------------------------------------------------


def test_contents_become_plain_text() -> None:
    given = [
        {"role": "developer", "content": "brief"},
        {
            "role": "user",
            "name": "ann",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
        {"role": "assistant", "content": None, "refusal": "no", "reasoning": "hm"},
        {"role": "assistant", "content": "yes", "reasoning_content": "hm", "tool_calls": []},
    ]
    assert generate(messages=given).messages == [
        {"role": "system", "content": "brief"},
        {"role": "user", "content": "ab", "name": "ann"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "no", "reasoning_content": "hm"},
        {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
    ]


def round_trip(call: dict[str, Any], result: dict[str, Any]) -> list[dict[str, Any]]:
    function = {"name": "times", "arguments": '{"x": 6, "y": 7}'}
    calls = [{"id": "call_1", "type": "function", "function": function, **call}]
    return [
        {"role": "user", "content": "six by seven"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "42", **result},
    ]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"x": 6, "y": 7}', {"x": 6, "y": 7}),
        ({"x": 6, "y": 7}, {"x": 6, "y": 7}),
        ("", {}),
        (" ", {}),
        ("{}", {}),
        ({}, {}),
        (None, {}),
    ],
)
@pytest.mark.parametrize("content", ["42", [{"type": "text", "text": "42"}]])
def test_a_round_trip_of_a_tool(arguments: Any, wanted: dict[str, Any], content: Any) -> None:
    given = round_trip(
        {"function": {"name": "times", "arguments": arguments}, "index": 0}, {"content": content}
    )
    _, called, result = generate(messages=given).messages
    assert called == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "times", "arguments": wanted},
            }
        ],
    }
    assert result == {"role": "tool", "tool_call_id": "call_1", "name": "times", "content": "42"}


def test_a_call_with_and_without_content_is_the_same_prompt() -> None:
    given = round_trip({}, {})
    absent = [dict(message) for message in given]
    del absent[1]["content"]
    empty = [given[0], {**given[1], "content": ""}, given[2]]
    assert generate(messages=given) == generate(messages=absent) == generate(messages=empty)


ARGUMENTS = "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("call", "result", "param"),
    [
        ({"function": {"name": "f", "arguments": '{"x": 6'}}, {}, ARGUMENTS),
        ({"function": {"name": "f", "arguments": "[1]"}}, {}, ARGUMENTS),
        ({"function": {"name": "f", "arguments": "null"}}, {}, ARGUMENTS),
        ({"function": {"name": "f", "arguments": "[" * 9999}}, {}, ARGUMENTS),
        ({"function": {"name": "f", "arguments": f'{{"x": {2**64}}}'}}, {}, ARGUMENTS),
        ({"function": {"name": ""}}, {}, "messages[1].tool_calls[0].function.name"),
        ({"type": "custom"}, {}, "messages[1].tool_calls[0].type"),
        ({"id": ""}, {}, "messages[1].tool_calls[0].id"),
        ({}, {"tool_call_id": None}, "messages[2].tool_call_id"),
        ({}, {"tool_call_id": "call_2"}, "messages[2].tool_call_id"),
        ({}, {"content": None}, "messages[2].content"),
    ],
)
def test_a_broken_round_trip_is_refused_by_name(
    call: dict[str, Any], result: dict[str, Any], param: str
) -> None:
    error = refused(messages=round_trip(call, result))
    assert error.param == param
    assert error.message.startswith(param)


@pytest.mark.parametrize("field", ["function_call", "audio"])
def test_what_an_assistant_message_cannot_have(field: str) -> None:
    error = refused(messages=[{"role": "assistant", "content": "a", field: {"id": "x"}}])
    assert (type(error), error.param) == (Unsupported, f"messages[0].{field}")


# --- tools ----------------------------------------------------------------------------------------


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


TOOLS = [tool("look", description="Looks.", parameters=SCHEMA, strict=True), tool("wait")]
NEUTRAL = [
    tool("look", description="Looks.", parameters=SCHEMA),
    tool("wait", parameters={"type": "object", "properties": {}}),
]


@pytest.mark.parametrize(
    ("fields", "choice", "tools"),
    [
        ({}, wire.ToolChoice(), NEUTRAL),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, wire.ToolChoice(), NEUTRAL),
        ({"parallel_tool_calls": False}, wire.ToolChoice(parallel=False), NEUTRAL),
        ({"tool_choice": "none"}, wire.ToolChoice("none"), []),
        ({"tool_choice": "required"}, wire.ToolChoice("required"), NEUTRAL),
        ({"tool_choice": tool("wait")}, wire.ToolChoice("named", "wait", False), NEUTRAL),
    ],
)
def test_tools_and_the_choice_among_them(
    fields: dict[str, Any], choice: wire.ToolChoice, tools: list[dict[str, Any]]
) -> None:
    request = generate(tools=TOOLS, **fields)
    assert (request.tool_choice, request.tools) == (choice, tools)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": tool("look")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": tool("nope")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"name": "look"}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [tool("a", parameters={"x": 2**64})]},
            "tools[0].function.parameters",
        ),
        ({"tools": [tool("a"), tool("")]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
    ],
)
def test_tools_and_choices_that_cannot_be(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


# --- media ----------------------------------------------------------------------------------------


FORMAT = "messages[0].content[0].input_audio.format"


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def test_images_are_noted_and_leave_a_part_where_they_were() -> None:
    parts = [
        {"type": "text", "text": "one "},
        image({"url": "data:,", "detail": "low"}),
        {"type": "text", "text": " two "},
        image("https://a.example/x.png"),
    ]
    request = decoded(messages=[{"role": "user", "content": parts}])
    assert request.media == (
        MediaRef("data:,", "messages[0].content[1]"),
        MediaRef("https://a.example/x.png", "messages[0].content[3]"),
    )
    (message,) = text_call(request).messages
    assert message["content"] == [
        {"type": "text", "text": "one "},
        {"type": "image", "media": 0},
        {"type": "text", "text": " two "},
        {"type": "image", "media": 1},
    ]


@pytest.mark.parametrize(
    ("part", "kind", "url"),
    [
        ({"type": "image_url", "image_url": "http://a/"}, "image", "http://a/"),
        ({"type": "image", "image": "/srv/a.png"}, "image", "/srv/a.png"),
        ({"type": "video_url", "video_url": {"url": "http://a/"}}, "video", "http://a/"),
        ({"type": "video_url", "video_url": "http://a/"}, "video", "http://a/"),
        ({"type": "video", "video": "/srv/a.mp4"}, "video", "/srv/a.mp4"),
        ({"type": "audio_url", "audio_url": {"url": "http://a/"}}, "audio", "http://a/"),
        ({"type": "audio", "audio": "/srv/a.wav"}, "audio", "/srv/a.wav"),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "audio",
            "data:audio/wav;base64,AAAA",
        ),
    ],
)
def test_every_form_of_media(part: dict[str, Any], kind: MediaKind, url: str) -> None:
    request = decoded(messages=[{"role": "user", "content": [part]}])
    assert request.media == (MediaRef(url, "messages[0].content[0]", kind),)
    assert text_call(request).messages[0]["content"] == [{"type": kind, "media": 0}]


def test_how_a_video_is_looked_at() -> None:
    call = text_call(decoded(video_fps=0.5, video_max_frames=8))
    assert call.video == wire.VideoFrames(0.5, 8)
    assert text_call(decoded()).video == wire.VideoFrames()
    assert refused(video_fps=0).param == "video_fps"
    assert refused(video_max_frames=0).param == "video_max_frames"


def test_parts_of_text_alone_are_a_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    request = decoded(messages=[{"role": "user", "content": parts}])
    assert text_call(request).messages[0]["content"] == "one two"


@pytest.mark.parametrize(
    ("role", "parts", "param"),
    [
        ("user", [{"type": "image_url"}], "messages[0].content[0]"),
        ("user", [image(3)], "messages[0].content[0].image_url"),
        ("user", [image({})], "messages[0].content[0].image_url.url"),
        ("user", [image("data:,")] * 17, "messages[0].content[16]"),
        ("system", [image("data:,")], "messages[0].content[0]"),
        ("assistant", [image("data:,")], "messages[0].content[0]"),
        ("user", [{"type": "video_url"}], "messages[0].content[0]"),
        ("user", [{"type": "video", "video": "x"}] * 5, "messages[0].content[4]"),
        ("user", [{"type": "input_audio", "input_audio": {"data": "AA"}}], FORMAT),
        (
            "user",
            [{"type": "input_audio", "input_audio": {"data": "AA", "format": "a;b"}}],
            FORMAT,
        ),
    ],
)
def test_media_that_cannot_be(role: str, parts: list[Any], param: str) -> None:
    assert refused(messages=[{"role": role, "content": parts}]).param == param


# --- what is not served ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "fine", "not_fine"),
    [
        ("functions", [], [{"name": "f"}]),
        ("function_call", "auto", {"name": "f"}),
        ("modalities", ["text"], ["text", "audio"]),
        ("audio", None, {"voice": "alloy"}),
        ("web_search_options", None, {}),
        ("verbosity", "medium", "low"),
        ("min_tokens", 0, 5),
        ("ignore_eos", False, True),
        ("stop_token_ids", [], [2]),
        ("use_beam_search", False, True),
        ("prompt_logprobs", None, 1),
    ],
)
def test_known_fields_pass_with_their_defaults_only(field: str, fine: Any, not_fine: Any) -> None:
    assert generate(**{field: fine}) == generate(**{field: None}) == generate()
    error = refused(**{field: not_fine})
    assert (type(error), error.param) == (Unsupported, field)


def test_two_formats_at_once_are_refused() -> None:
    error = refused(response_format={"type": "json_object"}, guided_regex="a")
    assert error.param == "guided_regex"
    assert "response_format" in error.message
    error = refused(structured_outputs={"json": SCHEMA, "regex": "a"})
    assert error.param == "structured_outputs.regex"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"structured_outputs": {"json": "no"}}, "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
    ],
)
def test_formats_that_are_none(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        ({"a": [1, 2.5, "x", None, True, {"b": []}]}, True),
        ({"a": 2**64 - 1, "b": -(2**63)}, True),
        ({"a": 2**64}, False),
        ({"a": [[-(2**63) - 1]]}, False),
    ],
)
def test_free_values_have_to_fit_the_wire(value: dict[str, Any], fine: bool) -> None:
    if fine:
        assert generate(chat_template_kwargs=value).template_kwargs == value
    else:
        error = refused(chat_template_kwargs=value)
        assert error.message.startswith("chat_template_kwargs: nested too deeply, or a")


def test_free_values_may_be_nested_a_little() -> None:
    value: Any = 1
    for _ in range(32):
        value = {"a": value}
    assert generate(chat_template_kwargs=value).template_kwargs == value
    assert "nested too deeply" in refused(chat_template_kwargs={"a": value}).message
