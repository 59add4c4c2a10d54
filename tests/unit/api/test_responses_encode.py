"""Neutral events to a response: what a stream tells, and what is whole in the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import wire
from gateway.api.responses_encode import EventEncoder, Json, ResponseEncoder, ResponsesDecoded
from gateway.api.responses_items import sealed
from gateway.errors import EngineCrashed
from gateway.supervisor.call import CallItem, Granted
from tests.harness.cases import events_of

STARTED = wire.Started(1, 5)
FINISHED = wire.Finished(1, wire.Usage(5, 3, 2, 1), wire.Timings())
THOUGHT = wire.ReasoningDelta(1, 0, "Hm.")
CALL = wire.ToolCallStart(1, 0, 0, "call_1", "add")


def text(said: str, *tokens: wire.TokenLogprob) -> wire.TextDelta:
    return wire.TextDelta(1, 0, said, tokens or None)


def arguments(said: str) -> wire.ToolCallArguments:
    return wire.ToolCallArguments(1, 0, 0, said)


def ended(reason: wire.FinishReason = "stop") -> wire.ChoiceFinished:
    return wire.ChoiceFinished(1, 0, reason)


def decoded(**fields: Any) -> ResponsesDecoded:
    given: dict[str, Any] = {
        "model": "m",
        "stream": True,
        "include_usage": True,
        "make": lambda call_id, _: wire.Generate(call_id),
        "owner": "",
        "fields": {"model": "m", "instructions": "Long.", "tools": [{"name": "add"}]},
        "items": b"[]",
        "previous": None,
        "store": True,
        "background": False,
        "summary": False,
        "sealed": False,
        "serial": "abc",
        **fields,
    }
    return ResponsesDecoded(**given)


class Kept(list[Json]):
    def __call__(self, _: ResponsesDecoded, response: Json) -> None:
        self.append(response)


def told(*items: CallItem, **fields: Any) -> list[tuple[str, Any]]:
    """The events of a stream, without those of its beginning."""
    encoder = EventEncoder(decoded(**fields), Kept())
    events = events_of(b"".join(encoder.frames([STARTED, *items])).decode())
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    for number, (name, data) in enumerate(events):
        assert (data["type"], data["sequence_number"]) == (name, number)
    return events[2:]


def whole(*items: CallItem, **fields: Any) -> Any:
    encoder = ResponseEncoder(decoded(**fields), Kept())
    encoder.add([Granted(), STARTED, *items])
    return json.loads(encoder.body())


def names(events: list[tuple[str, Any]]) -> list[str]:
    return [name.removeprefix("response.") for name, _ in events]


ANSWERS: dict[str, list[CallItem]] = {
    "text": [text("a "), text("b"), ended(), FINISHED],
    "everything": [
        *(THOUGHT, text("\n"), text("a"), text("b"), text(" \n")),
        *(CALL, arguments('{"x"'), arguments(":1}"), ended("tool_calls"), FINISHED),
    ],
    "no arguments": [CALL, ended("tool_calls"), FINISHED],
    "cut": [text("a"), ended("length"), FINISHED],
    "nothing": [ended(), FINISHED],
}


@pytest.mark.parametrize("items", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("summary", [False, True])
def test_a_stream_ends_with_what_it_told(items: list[CallItem], summary: bool) -> None:
    events = told(*items, summary=summary)
    response = events[-1][1]["response"]
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert response["output"] == done
    deltas: dict[str, str] = {}
    for name, data in events:
        if name.endswith(".delta"):
            deltas[data["item_id"]] = deltas.get(data["item_id"], "") + data["delta"]
    for item in done:
        (part,) = item.get("content") or item.get("summary") or [{"text": item.get("arguments")}]
        assert part["text"] == deltas[item["id"]]
    same = whole(*items, summary=summary)
    for both in (response, same):
        both["completed_at"] = None
        for item in both["output"]:
            item["id"] = item["id"].partition("_")[0]
    assert same == response


def test_the_events_of_a_text() -> None:
    events = told(text("a "), text("b"), ended(), FINISHED)
    assert names(events) == [
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    added, part, first, second, done, *_ = (data for _, data in events)
    assert (added["item"]["status"], added["item"]["content"]) == ("in_progress", [])
    assert part["part"] == {
        "type": "output_text",
        "annotations": [],
        "logprobs": [],
        "text": "",
    }
    place = {"item_id": added["item"]["id"], "output_index": 0, "content_index": 0}
    for delta, said in ((first, "a "), (second, "b")):
        assert delta.items() >= {**place, "delta": said, "logprobs": []}.items()
    assert done.items() >= {**place, "text": "a b"}.items()


def test_the_events_of_thoughts_and_of_a_call() -> None:
    items: list[CallItem] = [THOUGHT, CALL, arguments("{}"), ended("tool_calls"), FINISHED]
    call = [
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    assert names(told(*items)) == [
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done", *call),
    ]
    assert names(told(*items, summary=True)) == [
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
        *call,
    ]


def test_a_whole_response() -> None:
    response = whole(THOUGHT, text("a"), CALL, arguments("{}"), ended("tool_calls"), FINISHED)
    thoughts, message, call = response["output"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert (thoughts["summary"], thoughts["encrypted_content"]) == ([], None)
    assert message["content"][0]["text"] == "a"
    assert (call["call_id"], call["name"], call["arguments"]) == ("call_1", "add", "{}")
    assert (response["id"], response["object"], response["status"]) == (
        "resp_abc",
        "response",
        "completed",
    )
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }


def test_thoughts_are_sealed_for_who_asks() -> None:
    response = whole(THOUGHT, ended(), FINISHED, sealed=True)
    assert response["output"][0]["encrypted_content"] == sealed("Hm.")


def test_the_token_limit_makes_all_of_it_incomplete() -> None:
    events = told(CALL, arguments('{"x'), ended("length"), FINISHED)
    name, data = events[-1]
    response = data["response"]
    assert (name, response["status"]) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (response["output"][0]["status"], response["completed_at"]) == ("incomplete", None)


def test_logprobs_are_of_the_text_that_is_told() -> None:
    blank = wire.TokenLogprob("\n", -0.5)
    token = wire.TokenLogprob("é", -0.1, (("é", -0.1), ("e", float("-inf"))))
    events = told(text("\n", blank), CALL, text("é", token), ended(), FINISHED)
    (delta,) = [data for name, data in events if name == "response.output_text.delta"]
    (logprob,) = delta["logprobs"]
    assert (logprob["token"], logprob["bytes"], logprob["logprob"]) == ("é", [195, 169], -0.1)
    assert [top["logprob"] for top in logprob["top_logprobs"]] == [-0.1, -9999.0]
    part = events[-1][1]["response"]["output"][1]["content"][0]
    assert part["logprobs"] == [logprob]


def test_a_heartbeat_begins_the_response_and_then_tells_its_status() -> None:
    encoder = EventEncoder(decoded(), Kept())
    frames = encoder.heartbeat() + encoder.heartbeat() + b"".join(encoder.frames([STARTED]))
    events = events_of(frames.decode())
    assert names(events) == ["created", "in_progress", "in_progress"]
    assert events[0][1]["response"]["instructions"] == "Long."
    beat = events[2][1]["response"]
    assert (beat["id"], beat["instructions"], beat["tools"]) == ("resp_abc", None, [])


def test_the_background_is_queued_until_its_call_begins() -> None:
    encoder = EventEncoder(decoded(background=True), Kept())
    frames = [*encoder.begin(), encoder.heartbeat(), *encoder.frames([STARTED])]
    assert names(events_of(b"".join(frames).decode())) == [
        *("created", "queued", "queued", "in_progress")
    ]


def test_a_failure_is_a_response_too_and_is_kept() -> None:
    kept = Kept()
    encoder = EventEncoder(decoded(), kept)
    encoder.frames([STARTED, text("a")])
    ((name, data),) = events_of(encoder.error(EngineCrashed("it died")).decode())
    assert name == "response.failed"
    assert data["response"]["error"] == {"code": "engine_crashed", "message": "it died"}
    assert data["response"]["output"][0]["status"] == "incomplete"
    assert [response["status"] for response in kept] == ["failed"]


def test_a_response_is_kept_once() -> None:
    kept = Kept()
    EventEncoder(decoded(), kept).frames([STARTED, text("a"), ended(), FINISHED])
    encoder = ResponseEncoder(decoded(), kept)
    encoder.add([STARTED, text("a"), ended(), FINISHED])
    encoder.body()
    assert [response["status"] for response in kept] == ["completed", "completed"]
