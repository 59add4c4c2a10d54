"""Neutral events to chat completion chunks, and to one chat completion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import wire
from gateway.api.chat_encode import ChunkEncoder, CompletionEncoder
from gateway.api.dialect import Decoded
from gateway.errors import EngineCrashed
from gateway.residency import Phase
from gateway.supervisor.call import CallItem, Granted


def decoded(n: int = 1, include_usage: bool = False) -> Decoded:
    return Decoded(
        model="m",
        stream=True,
        include_usage=include_usage,
        make=lambda call_id, _: wire.Generate(call_id),
        n=n,
        fingerprint="fp_1",
    )


USAGE = wire.Usage(10, 3, 4, 2)
USAGE_OUT = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
TEXT = 'line\n"quoted" \N{GRINNING FACE} \u2028'
BEFORE: list[CallItem] = [
    *(Phase.ROOM, Phase.LOADING, Granted(), wire.PromptProgress(1, 5, 10), wire.Started(1, 10, 4)),
]
FINISHED = wire.Finished(1, USAGE, wire.Timings())


def answered(*events: CallItem, reason: wire.FinishReason = "stop") -> list[CallItem]:
    """A whole call with one choice."""
    return [*BEFORE, *events, wire.ChoiceFinished(1, 0, reason), FINISHED]


def text(text: str, choice: int = 0) -> wire.TextDelta:
    return wire.TextDelta(1, choice, text)


def data(frame: bytes) -> Any:
    """What is in a frame, which has to be one event."""
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    return json.loads(frame.removeprefix(b"data: "))


def streamed(items: list[CallItem], request: Decoded, together: bool = True) -> list[Any]:
    """The chunks of a call; its stream has to end with `[DONE]`."""
    encoder = ChunkEncoder(request)
    batches = [items] if together else [[item] for item in items]
    frames = [frame for batch in batches for frame in encoder.frames(batch)]
    assert frames[-1] == b"data: [DONE]\n\n"
    chunks = [data(frame) for frame in frames[:-1]]
    heads = {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["system_fingerprint"] for chunk in chunks} == {"fp_1"}
    return chunks


def deltas(*items: CallItem, reason: wire.FinishReason = "stop") -> list[Any]:
    """The deltas between role and finish reason."""
    first, *between, last = streamed(answered(*items, reason=reason), decoded())
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": reason}]
    return [chunk["choices"][0]["delta"] for chunk in between]


def completed(items: list[CallItem], request: Decoded | None = None) -> Any:
    encoder = CompletionEncoder(request or decoded())
    for item in items:
        encoder.add([item])
    return json.loads(encoder.body())


def message(*items: CallItem, reason: wire.FinishReason = "stop") -> Any:
    (choice,) = completed(answered(*items, reason=reason))["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, reason)
    return choice["message"]


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_the_order_of_chunks(usage: bool, together: bool) -> None:
    items = answered(text(TEXT), text("b"), reason="length")
    chunks = streamed(items, decoded(include_usage=usage), together)
    if usage:
        last = chunks.pop()
        assert (last["choices"], last["usage"]) == ([], USAGE_OUT)
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        [{"index": 0, "delta": {"content": TEXT}, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": "length"}],
    ]


def test_each_choice_has_its_role_first_and_one_finish_reason() -> None:
    items: list[CallItem] = [
        *BEFORE,
        *(text("a", 0), text("b", 1), text("c", 0)),
        *(wire.ChoiceFinished(1, 1, "stop"), wire.ChoiceFinished(1, 0, "length"), FINISHED),
    ]
    choices = [chunk["choices"][0] for chunk in streamed(items, decoded(n=2))]
    role = {"role": "assistant", "content": ""}
    assert [(choice["index"], choice["delta"], choice["finish_reason"]) for choice in choices] == [
        *((0, role, None), (1, role, None)),
        *((0, {"content": "a"}, None), (1, {"content": "b"}, None), (0, {"content": "c"}, None)),
        *((1, {}, "stop"), (0, {}, "length")),
    ]


def test_reasoning_has_both_names() -> None:
    assert deltas(wire.ReasoningDelta(1, 0, "hm"), text("so")) == [
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "so"},
    ]


CALLS: list[CallItem] = [
    wire.ToolCallStart(1, 0, 0, "call_a", "look"),
    wire.ToolCallArguments(1, 0, 0, '{"x": '),
    wire.ToolCallArguments(1, 0, 0, "1}"),
    wire.ToolCallStart(1, 0, 1, "call_b", "wait"),
    wire.ToolCallArguments(1, 0, 1, "{}"),
]


def test_a_call_has_its_id_and_name_once_and_its_arguments_in_pieces() -> None:
    assert [delta["tool_calls"] for delta in deltas(*CALLS, reason="tool_calls")] == [
        [
            {
                "index": 0,
                "id": "call_a",
                "type": "function",
                "function": {"name": "look", "arguments": ""},
            }
        ],
        [{"index": 0, "function": {"arguments": '{"x": '}}],
        [{"index": 0, "function": {"arguments": "1}"}}],
        [
            {
                "index": 1,
                "id": "call_b",
                "type": "function",
                "function": {"name": "wait", "arguments": ""},
            }
        ],
        [{"index": 1, "function": {"arguments": "{}"}}],
    ]


TOKENS = (
    wire.TokenLogprob("é", -0.5, (("é", -0.5), ("e", -1.5))),
    wire.TokenLogprob("!", float("-inf")),
)
TOKENS_OUT = {
    "content": [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [195, 169],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                {"token": "e", "logprob": -1.5, "bytes": [101]},
            ],
        },
        {"token": "!", "logprob": -9999.0, "bytes": [33], "top_logprobs": []},
    ],
    "refusal": None,
}


def test_log_probabilities_are_beside_their_text() -> None:
    items = answered(wire.TextDelta(1, 0, "é!", TOKENS))
    _, chunk, _ = streamed(items, decoded())
    assert chunk["choices"] == [
        {
            "index": 0,
            "delta": {"content": "é!"},
            "logprobs": TOKENS_OUT,
            "finish_reason": None,
        }
    ]


def test_an_error_frame_is_the_error_object() -> None:
    frame = ChunkEncoder(decoded()).error(EngineCrashed("killed by SIGKILL", retry_after_s=1))
    assert data(frame) == {
        "error": {
            "message": "killed by SIGKILL",
            "type": "service_unavailable_error",
            "param": None,
            "code": "engine_crashed",
        }
    }


def test_a_heartbeat_is_a_comment() -> None:
    beat = ChunkEncoder(decoded()).heartbeat()
    assert beat.startswith(b":")
    assert beat.endswith(b"\n\n")


# --- whole answers --------------------------------------------------------------------------------


def test_one_body() -> None:
    body = completed(answered(text(TEXT), text("b"), reason="length"))
    assert body.pop("id").startswith("chatcmpl-")
    assert type(body.pop("created")) is int
    assert body == {
        "object": "chat.completion",
        "model": "m",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT + "b", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": USAGE_OUT,
    }


def test_several_choices_in_one_body() -> None:
    items: list[CallItem] = [
        *BEFORE,
        *(text("a", 1), text("b", 0), text("c", 1)),
        *(wire.ChoiceFinished(1, 1, "stop"), wire.ChoiceFinished(1, 0, "length"), FINISHED),
    ]
    choices = completed(items, decoded(n=2))["choices"]
    found = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in choices]
    assert found == [(0, "b", "length"), (1, "ac", "stop")]


def test_a_trace_in_one_body_has_both_names() -> None:
    assert message(wire.ReasoningDelta(1, 0, "h"), wire.ReasoningDelta(1, 0, "m"), text("so")) == {
        "role": "assistant",
        "content": "so",
        "refusal": None,
        "reasoning_content": "hm",
        "reasoning": "hm",
    }


@pytest.mark.parametrize(("said", "content"), [("", None), ("\n", None), ("Look:", "Look:")])
def test_calls_in_one_body(said: str, content: str | None) -> None:
    found = message(text(said), *CALLS, reason="tool_calls")
    assert found["content"] == content
    assert found["tool_calls"] == [
        {
            "id": "call_a",
            "type": "function",
            "function": {"name": "look", "arguments": '{"x": 1}'},
        },
        {"id": "call_b", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
    ]


def test_a_call_that_was_cut_is_none() -> None:
    found = message(*CALLS[:-1], reason="length")
    assert [call["id"] for call in found["tool_calls"]] == ["call_a"]
    found = message(text("x"), *CALLS[:2], reason="length")
    assert "tool_calls" not in found
    assert found["content"] == "x"


def test_log_probabilities_of_a_whole_answer() -> None:
    first, second = (wire.TextDelta(1, 0, token.token, (token,)) for token in TOKENS)
    (choice,) = completed(answered(first, second))["choices"]
    assert choice["logprobs"] == TOKENS_OUT
