"""The Anthropic dialect after the exchange: neutral events to frames and to one body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from engines import wire
from gateway.api.messages_encode import EventEncoder, MessageEncoder, MessagesDecoded
from gateway.api.messages_prompt import signature
from gateway.errors import EngineCrashed, EngineFailed
from gateway.residency import Phase
from gateway.supervisor.call import CallItem, Granted

Event = dict[str, Any]

BEFORE: list[CallItem] = [
    *(Phase.ROOM, Phase.LOADING, Granted(), wire.PromptProgress(1, 5, 10), wire.Started(1, 10, 4))
]
USAGE = wire.Usage(10, 8, 4, 3)
USAGE_OUT = {
    "input_tokens": 6,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 4,
    "output_tokens": 8,
    "output_tokens_details": {"thinking_tokens": 3},
}
TEXT = 'line\n"quoted" \N{GRINNING FACE} \u2028'


def thought(text: str) -> CallItem:
    return wire.ReasoningDelta(1, 0, text)


def said(text: str) -> CallItem:
    return wire.TextDelta(1, 0, text)


def called(index: int, name: str, *arguments: str) -> list[CallItem]:
    pieces = [wire.ToolCallArguments(1, 0, index, piece) for piece in arguments]
    return [wire.ToolCallStart(1, 0, index, f"call_{index}", name), *pieces]


def decoded(show_thinking: bool = True) -> MessagesDecoded:
    return MessagesDecoded(
        model="m",
        stream=True,
        include_usage=True,
        make=lambda call_id, _: wire.Generate(call_id),
        show_thinking=show_thinking,
    )


def answer(
    *items: CallItem, reason: wire.FinishReason = "stop", stop: str | None = None
) -> list[CallItem]:
    end: list[CallItem] = [
        wire.ChoiceFinished(1, 0, reason, stop),
        wire.Finished(1, USAGE, wire.Timings()),
    ]
    return [*BEFORE, *items, *end]


def event(frame: bytes) -> Event:
    """What is in a frame, which has to be one event named after its type."""
    name, data, *rest = frame.decode().split("\n")
    assert rest == ["", ""]
    value: Event = json.loads(data.removeprefix("data: "))
    assert name == f"event: {value['type']}"
    return value


def streamed(items: Sequence[CallItem], show_thinking: bool = True) -> list[Event]:
    """The events of a stream, which are the same however the items come together."""
    one_by_one, together = (
        EventEncoder(decoded(show_thinking)),
        EventEncoder(decoded(show_thinking)),
    )
    events = [event(frame) for item in items for frame in one_by_one.frames([item])]
    at_once = [event(frame) for frame in together.frames(items)]
    assert at_once[1:] == events[1:]  # the first holds an id
    return events


def whole(items: Sequence[CallItem], show_thinking: bool = True) -> Event:
    encoder = MessageEncoder(decoded(show_thinking))
    for item in items:
        encoder.add([item])
    body: Event = json.loads(encoder.body())
    return body


def rebuilt(events: Sequence[Event]) -> Event:
    """The message that a client puts together; fails where the protocol is broken."""
    first, *rest = events
    assert first["type"] == "message_start"
    message: Event = first["message"]
    is_open, pieces = False, ""
    for number, got in enumerate(rest):
        match got:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert not is_open
                assert index == len(message["content"])
                message["content"].append(block)
                is_open, pieces = True, ""
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert is_open
                assert index == len(message["content"]) - 1
                pieces += _grown(message["content"][-1], delta)
            case {"type": "content_block_stop", "index": index}:
                assert is_open
                assert index == len(message["content"]) - 1
                is_open = False
                if pieces:
                    message["content"][-1]["input"] = json.loads(pieces)
            case {"type": "message_delta"}:
                assert not is_open
                message |= got["delta"]
                message["usage"] = got["usage"]
            case _:
                assert got == {"type": "message_stop"}
                assert number == len(rest) - 1
    return message


def _grown(block: Event, delta: Event) -> str:
    """Adds a delta to the block that it is for; of a tool's input, returns its piece."""
    match delta:
        case {"type": "text_delta", "text": text}:
            assert block["type"] == "text"
            block["text"] += text
        case {"type": "thinking_delta", "thinking": text}:
            assert block["type"] == "thinking"
            assert block["signature"] == ""
            block["thinking"] += text
        case {"type": "signature_delta"}:
            assert block["type"] == "thinking"
            block["signature"] = delta["signature"]
        case _:
            assert block["type"] == "tool_use"
            piece: str = delta["partial_json"]
            return piece
    return ""


def tool_use(index: int, name: str, arguments: Event) -> Event:
    return {"type": "tool_use", "id": f"call_{index}", "name": name, "input": arguments}


ANSWERS: list[tuple[str, list[CallItem], list[Event]]] = [
    ("text", answer(said(TEXT), said("b")), [{"type": "text", "text": TEXT + "b"}]),
    (
        "everything",
        answer(
            thought("Look "),
            thought("it up"),
            said("\n\n"),
            said("I will check."),
            said("\n"),
            *called(0, "get_weather", '{"city": "Os', 'lo"}'),
            said("\n"),
            *called(1, "get_time"),
            said("\n"),
            reason="tool_calls",
        ),
        [
            {"type": "thinking", "thinking": "Look it up", "signature": signature("Look it up")},
            {"type": "text", "text": "\n\nI will check.\n"},
            tool_use(0, "get_weather", {"city": "Oslo"}),
            tool_use(1, "get_time", {}),
        ],
    ),
    (
        "thoughts twice",
        answer(thought("a"), said("b"), thought("c"), said("d")),
        [
            {"type": "thinking", "thinking": "a", "signature": signature("a")},
            {"type": "text", "text": "b"},
            {"type": "thinking", "thinking": "c", "signature": signature("c")},
            {"type": "text", "text": "d"},
        ],
    ),
    ("nothing", answer(), []),
    ("white space alone", answer(said(" "), said("\n")), []),
]


@pytest.mark.parametrize(
    ("items", "content"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS]
)
def test_streamed_and_whole_are_the_same_message(
    items: list[CallItem], content: list[Event]
) -> None:
    for message in (rebuilt(streamed(items)), whole(items)):
        assert message.pop("id").startswith("msg_")
        assert message == {
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": content,
            "stop_reason": "tool_use" if any("input" in block for block in content) else "end_turn",
            "stop_sequence": None,
            "usage": USAGE_OUT,
        }


def test_the_events_to_the_letter() -> None:
    items = answer(thought("a"), said("b"), *called(0, "f", "{}"), reason="tool_calls")
    start, *events = streamed(items)
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"] == USAGE_OUT | {
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    assert events == [
        *_block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "a"},
            {"type": "signature_delta", "signature": signature("a")},
        ),
        *_block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "b"}),
        *_block(2, tool_use(0, "f", {}), {"type": "input_json_delta", "partial_json": "{}"}),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": USAGE_OUT,
        },
        {"type": "message_stop"},
    ]


def _block(index: int, block: Event, *deltas: Event) -> Iterator[Event]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def test_omitted_thoughts_leave_their_signature() -> None:
    items = answer(thought("secret "), thought("plan"), said("b"))
    content = [
        {"type": "thinking", "thinking": "", "signature": signature("secret plan")},
        {"type": "text", "text": "b"},
    ]
    assert rebuilt(streamed(items, show_thinking=False))["content"] == content
    assert whole(items, show_thinking=False)["content"] == content


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, "end_turn"),
        ("stop", "</done>", "stop_sequence"),
        ("length", None, "max_tokens"),
        ("tool_calls", None, "tool_use"),
    ],
)
def test_why_it_stopped(reason: wire.FinishReason, stop: str | None, expected: str) -> None:
    items = answer(said("a"), reason=reason, stop=stop)
    for message in (rebuilt(streamed(items)), whole(items)):
        assert (message["stop_reason"], message["stop_sequence"]) == (expected, stop)


def test_numbers_in_arguments_stay_as_they_were_written() -> None:
    number = str(10**30)
    encoder = MessageEncoder(decoded())
    encoder.add(answer(*called(0, "f", '{"n": ', number, "}")))
    assert f'"n": {number}'.encode() in encoder.body()


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "nothing"])
def test_broken_arguments_never_make_a_message(arguments: str) -> None:
    encoder = MessageEncoder(decoded())
    encoder.add(answer(*called(0, "f", arguments)))
    with pytest.raises(EngineFailed, match="the model called 'f' with what is no JSON object"):
        encoder.body()


def test_a_heartbeat_is_a_comment_until_the_message_has_begun() -> None:
    encoder = EventEncoder(decoded())
    assert encoder.heartbeat() == b": waiting\n\n"
    encoder.frames(BEFORE)
    assert encoder.heartbeat() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_an_error_is_an_event() -> None:
    error = EngineCrashed("killed by SIGKILL", retry_after_s=1)
    assert event(EventEncoder(decoded()).error(error)) == {
        "type": "error",
        "error": {
            "type": "overloaded_error",
            "message": "killed by SIGKILL",
            "code": "engine_crashed",
        },
    }
