"""Bad input of every kind: a 400 that names the field, and a gateway that is as before."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from tests.harness.daemon import CHAT, Daemon, chat_body, daemon, registry, reply, scripted
from tests.harness.raw import connect, head_bytes, read_rest, request_bytes

pytestmark = pytest.mark.anyio

MIB = 2**20
DEEP = 100_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    models = [scripted("model", deltas=3), scripted("modest"), scripted("other")]
    with daemon(
        registry(*models, server={"max_body_mb": 1}), tmp_path_factory.mktemp("gateway")
    ) as running:
        yield running


@dataclass(frozen=True)
class Bad:
    """A body, the field that the answer has to blame, and words of its message."""

    name: str
    body: bytes
    param: str | None
    words: str
    code: str = "invalid_request"


def field(name: str, value: Any, words: str = "", param: str | None = None) -> Bad:
    """One wrong field in a body that is right otherwise."""
    body = json.dumps({**chat_body("model"), name: value}).encode()
    return Bad(f"{name}={str(value)[:30]}", body, param or name, words)


def unserved(name: str, value: Any, param: str | None = None) -> Bad:
    """A field that is known, with a value that nothing here can honour."""
    return replace(field(name, value, "served", param), code="unsupported_parameter")


def message(value: Any, param: str, words: str = "") -> Bad:
    body = json.dumps({"model": "model", "messages": [value]}).encode()
    return Bad(f"message={str(value)[:40]}", body, param, words)


def raw(name: str, body: bytes, words: str, param: str | None = None) -> Bad:
    return Bad(name, body, param, words)


def literal(name: str, text: str, param: str | None, words: str) -> Bad:
    """A field as JSON text that no encoder would write."""
    body = json.dumps(chat_body("model"))[:-1] + f', "{name}": {text}}}'
    return Bad(f"{name}={text[:30]}", body.encode(), param, words)


USER = {"role": "user"}

TABLE = [
    # no JSON, or no object
    raw("empty body", b"", "not valid JSON"),
    raw("half a body", b'{"model": "model", "messages": [', "not valid JSON"),
    raw("array", b"[]", "expected `object`, got `array`"),
    raw("null", b"null", "expected `object`, got `null`"),
    raw("text", b"model=model", "not valid JSON"),
    raw("trailing", json.dumps(chat_body("model")).encode() + b"}", "not valid JSON"),
    raw("half, after a float for an integer", b'{"max_tokens": 1.5, "messages": [', "not valid"),
    raw("deep", b'{"x":' + b"[" * DEEP, "nested too deeply"),
    raw("deep and balanced", b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}", "nested too deeply"),
    raw("deep, after a float", b'{"max_tokens": 1.5, "x":' + b"[" * DEEP, "nested too deeply"),
    # encodings
    raw("UTF-8 in a known field", b'{"model": "\xff\xfe"}', "not valid UTF-8"),
    raw("UTF-8 in an unknown field", b'{"model": "model", "x": "\xc3("}', "not valid UTF-8"),
    raw("UTF-16", json.dumps(chat_body("model")).encode("utf-16"), "not valid UTF-8"),
    literal("model", '"\\ud800"', None, "not valid JSON"),
    literal("model", '"\\udc00 x"', None, "not valid JSON"),
    # the model
    raw("no model", b'{"messages": [{"role": "user", "content": "x"}]}', "required", "model"),
    field("model", "", "length"),
    field("model", None, "got `null`"),
    field("model", 7, "got `int`"),
    field("model", ["model"], "got `array`"),
    field("model", "x" * 513, "length"),
    # messages
    raw("no messages", b'{"model": "model"}', "required", "messages"),
    field("messages", [], "length >= 1"),
    field("messages", {}, "got `object`"),
    field("messages", "hello", "got `str`"),
    field("messages", None, "got `null`"),
    message("hello", "messages[0]", "got `str`"),
    message({"content": "x"}, "messages[0].role", "required"),
    message({"role": "function", "content": "x"}, "messages[0].role", "'function'"),
    message({"role": "tool", "content": "x"}, "messages[0].tool_call_id", "name the call"),
    message({"role": None, "content": "x"}, "messages[0].role"),
    message({**USER, "content": None}, "messages[0].content", "needs a content"),
    message(USER, "messages[0].content", "needs a content"),
    message({**USER, "content": 5}, "messages[0].content", "got `int`"),
    message({**USER, "content": ["x"]}, "messages[0].content[0]", "got `str`"),
    message({**USER, "content": [{"text": "x"}]}, "messages[0].content[0].type", "required"),
    message({**USER, "content": [{"type": "text"}]}, "messages[0].content[0].text", "required"),
    message(
        {**USER, "content": [{"type": "input_audio", "input_audio": {"format": "wav"}}]},
        "messages[0].content[0].input_audio.data",
        "required",
    ),
    message(
        {**USER, "content": [{"type": "file", "file": {"file_id": "f"}}]},
        "messages[0].content[0]",
        "'file'",
    ),
    # numbers
    field("max_tokens", 0, ">= 1"),
    field("max_tokens", -1, ">= 1"),
    field("max_tokens", 1.5, "got `float`"),
    field("max_tokens", "5", "got `str`"),
    field("max_tokens", True, "got `bool`"),
    field("max_tokens", 10**30, "<="),
    field("max_tokens", 1e300, "<="),
    field("max_completion_tokens", 0, ">= 1"),
    field("seed", 2**63, "<="),
    field("temperature", 3, "<= 2"),
    field("temperature", -0.1, ">= 0"),
    field("temperature", "warm", "got `str`"),
    field("top_p", 1.1, "<= 1"),
    field("top_k", -2, ">= -1"),
    field("top_k", 0.5, "got `float`"),
    field("min_p", 2, "<= 1"),
    literal("temperature", "NaN", None, "not valid JSON"),
    literal("temperature", "Infinity", None, "not valid JSON"),
    literal("temperature", "1e999", "temperature", "out of range"),
    literal("max_tokens", "1e999", "max_tokens", "out of range"),
    literal("max_tokens", "01", None, "not valid JSON"),
    # stops
    field("stop", "", "length >= 1"),
    field("stop", [""], "length >= 1", "stop[0]"),
    field("stop", ["a", 1], "got `int`", "stop[1]"),
    field("stop", ["a"] * 17, "length <= 16"),
    field("stop", "x" * 1025, "length <= 1024"),
    # switches
    field("stream", "yes", "got `str`"),
    field("stream", 1, "got `int`"),
    field("stream_options", True, "got `bool`"),
    field("stream_options", {"include_usage": 1}, "got `int`", "stream_options.include_usage"),
    field("chat_template_kwargs", [1], "got `array`"),
    field("chat_template_kwargs", {"x": 10**30}, "64 bits"),
    field("chat_template_kwargs", {"x": -(2**63) - 1}, "64 bits"),
    literal("chat_template_kwargs", '{"x":' * 40 + "1" + "}" * 40, "chat_template_kwargs", "deep"),
    literal(
        "chat_template_kwargs", '{"x":' * 900 + "1" + "}" * 900, "chat_template_kwargs", "deep"
    ),
    # lists and maps
    field("logit_bias", {"x": 1}, "a key: expected `int`"),
    field("logit_bias", {"-1": 1}, "a key: expected `int` >= 0"),
    field("logit_bias", {"1": 101}, "<= 100", "logit_bias[...]"),
    field("tools", [{"type": "function"}], "required", "tools[0].function"),
    field("tools", [{"type": "function", "function": {}}], "required", "tools[0].function.name"),
    field("tool_choice", "required", "there are no tools"),
    field("tool_choice", "sometimes", "'sometimes'"),
    field("response_format", {"type": "json_schema"}, "required", "response_format.json_schema"),
    # more numbers
    field("n", 0, ">= 1"),
    field("n", 65, "<= 64"),
    field("top_logprobs", 5, "needs logprobs"),
    field("top_logprobs", 21, "<= 20"),
    field("presence_penalty", 2.5, "<= 2"),
    field("repetition_penalty", 0, "> 0"),
    field("timeout", 0, "> 0"),
    field("keep_alive", -0.5, "-1 to keep"),
    # known, and not served
    unserved("functions", [{"name": "f"}]),
    unserved("function_call", {"name": "f"}),
    unserved("response_format", {"type": "yaml"}, "response_format.type"),
    unserved("tools", [{"type": "web_search"}], "tools[0].type"),
    unserved("modalities", ["text", "audio"]),
    unserved("min_tokens", 3),
]


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
async def test_bad_input_is_a_400_that_names_the_field(gateway: Daemon, bad: Bad) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, content=bad.body)
    error = assert_openai_error(answer, 400, bad.code)
    assert error["param"] == bad.param, error
    assert bad.words in error["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_after_all_of_it_the_gateway_is_as_before(gateway: Daemon) -> None:
    assert (await gateway.chat("model")).status_code == 200
    before = await gateway.model("model")
    async with gateway.client() as client:
        await client.get("/livez")
        streams = [(await client.get("/livez")).extensions["network_stream"]]
        for bad in TABLE:
            answer = await client.post(CHAT, content=bad.body)
            assert answer.status_code == 400, bad.name
            streams.append(answer.extensions["network_stream"])
        assert len(set(map(id, streams))) == 1, "the connection was not kept"
        answer = await client.post(CHAT, json=chat_body("model"))
        assert answer.json()["choices"][0]["message"]["content"] == reply(3)
    after = await gateway.model("model")
    assert (after["loads"], after["pid"]) == (before["loads"], before["pid"])
    assert (await gateway.get("/health")).json()["failed"] == []


SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop")
SWITCHES = ("stream", "stream_options", "max_completion_tokens", "chat_template_kwargs")
OTHERS = (
    *("n", "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "tools", "functions", "tool_choice", "response_format", "timeout"),
    *("parallel_tool_calls", "reasoning_effort", "thinking_token_budget", "modalities"),
)

FINE: list[tuple[str, dict[str, Any], str]] = [
    ("whole float", {"max_tokens": 2.0, "seed": 7.0, "top_k": 5.0, "n": 1.0}, "word1 word2 "),
    (
        "nulls",
        dict.fromkeys([*SAMPLING, *SWITCHES, *OTHERS]),
        reply(3),
    ),
    (
        "defaults",
        {
            **{"n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "stop": []},
            **{"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
            **{"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}},
            **{"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "stream": False},
        },
        reply(3),
    ),
    ("unknown fields", {"user": "me", "metadata": {"a": [1, {}]}, "store": True}, reply(3)),
    ("free kwargs", {"chat_template_kwargs": {"a": [1, None, {"b": 2.5}], "c": "x"}}, reply(3)),
    ("large but possible", {"max_tokens": 10**9, "seed": -(2**63)}, reply(3)),
]


@pytest.mark.parametrize(
    ("fields", "text"), [row[1:] for row in FINE], ids=[row[0] for row in FINE]
)
async def test_what_is_unusual_and_fine(gateway: Daemon, fields: dict[str, Any], text: str) -> None:
    answer = await gateway.chat("model", **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    "messages",
    [
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}],
            }
        ],
        [{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "user", "content": "b"}],
        [{"role": "assistant", "content": None, "refusal": None}],
        [{"role": "developer", "content": "be brief"}, {"role": "user", "content": ""}],
    ],
    ids=["parts", "assistant without content", "null for an assistant", "developer"],
)
async def test_messages_of_every_shape(gateway: Daemon, messages: list[dict[str, Any]]) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json={"model": "model", "messages": messages})
    assert answer.status_code == 200, answer.text


# --- the size of a body ---------------------------------------------------------------------------


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(gateway: Daemon) -> None:
    with connect(gateway.port) as client:
        client.sendall(head_bytes(CHAT, f"Content-Length: {MIB + 1}"))
        assert_too_large(read_rest(client))


def test_a_body_that_becomes_too_large_is_refused_while_it_is_sent(gateway: Daemon) -> None:
    chunk = b"%x\r\n%s\r\n" % (2**16, b" " * 2**16)
    with connect(gateway.port) as client:
        client.sendall(head_bytes(CHAT, "Transfer-Encoding: chunked"))
        for _ in range(MIB // 2**16 + 4):
            client.sendall(chunk)
        client.sendall(b"0\r\n\r\n")
        assert_too_large(read_rest(client))


def test_a_client_that_sends_on_and_on_can_still_read_why(gateway: Daemon) -> None:
    with connect(gateway.port) as client:
        client.sendall(head_bytes(CHAT, f"Content-Length: {8 * MIB}"))
        client.sendall(b" " * (6 * MIB))
        client.shutdown(socket.SHUT_WR)
        assert_too_large(read_rest(client))


async def test_a_body_of_exactly_the_limit_is_read(gateway: Daemon) -> None:
    body = json.dumps(chat_body("model")).encode()
    async with gateway.client() as client:
        answer = await client.post(CHAT, content=body.ljust(MIB))
        assert answer.status_code == 200
        answer = await client.post(CHAT, content=body.ljust(MIB + 1))
        assert_openai_error(answer, 413, "request_too_large")


def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody(gateway: Daemon) -> None:
    with connect(gateway.port) as client:
        client.sendall(request_bytes(CHAT, b"x" * 1000)[:-500])
    with httpx.Client(base_url=gateway.url, trust_env=False) as other:
        assert other.get("/health").status_code == 200


def assert_too_large(answer: bytes) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 "), answer
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert error["code"] == "request_too_large"
    assert "1 MiB (server.max_body_mb in the registry)" in error["message"]


# --- names, paths, methods ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("modle", "did you mean 'model'"),
        ("MODEST", "GET /v1/models lists what there is, such as model, modest, other"),
        ("x" * 500, "…"),
        ("../../etc/passwd", "no model"),
    ],
)
async def test_an_unknown_model_is_a_404_with_close_matches(
    gateway: Daemon, name: str, words: str
) -> None:
    error = assert_openai_error(await gateway.chat(name), 404, "model_not_found")
    assert words in error["message"]
    assert error["param"] == "model"
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "words"),
    [
        ("GET", CHAT, 405, "method_not_allowed", "use POST"),
        ("DELETE", "/v1/models", 405, "method_not_allowed", "use"),
        ("POST", "/health", 405, "method_not_allowed", "use"),
        ("GET", "/nothing", 404, "not_found", "nothing at /nothing"),
        ("POST", "/v1/chat/completions/", 404, "not_found", "nothing at"),
        ("GET", "/v2/models", 404, "not_found", "nothing at /v2/models"),
        ("GET", "/v1/models/no-such", 404, "model_not_found", "no model 'no-such'"),
        ("GET", "/v1/models/%F0%9F%98%80/x", 404, "model_not_found", "no model"),
    ],
)
async def test_wrong_paths_and_methods_are_json_errors_too(
    gateway: Daemon, method: str, path: str, status: int, code: str, words: str
) -> None:
    async with gateway.client() as client:
        answer = await client.request(method, path)
    error = assert_openai_error(answer, status, code)
    assert words in error["message"]
    if status == 405:
        assert "allow" in answer.headers


def assert_openai_error(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    return error
