"""What an event stream has to hold, by the rules of its dialect. Pure.

Wanted of a stream, each optional: `order`, a regular expression for the names of the events, joined
by spaces, pings left out, where an event without a name is called `data` and the last of OpenAI's
`done`; `events`, checks by name of the first such event, or by `name[n]` of the n-th from 0,
negative from the end; `every`, checks of each event but `done`; `same`, paths whose values do not
change; `count`, how many events have something at a path; `choices`, OpenAI's texts by index;
`blocks`, Anthropic's blocks in their order, each as checks of what its deltas make of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.harness.checks import MISSING, Checks, at, wrong

Events = list[tuple[str, Any]]

GROWS = {
    ("thinking", "thinking_delta"): "thinking",
    ("thinking", "signature_delta"): "signature",
    ("text", "text_delta"): "text",
    ("tool_use", "input_json_delta"): "partial_json",
}
"""The deltas that a block may have, by its type, and the field in which each holds its text."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    order: str | None = None
    events: dict[str, Checks] = {}
    every: Checks = {}
    same: list[str] = []
    count: dict[str, int] = {}
    choices: dict[int, str] | None = None
    blocks: list[Checks] | None = None


def events_of(text: str) -> Events:
    """Name and data of every event of a stream; comments are left out."""
    events: Events = []
    for block in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")
        )
        if not fields:
            continue
        if fields.get("data") == "[DONE]":
            events.append(("done", None))
        else:
            events.append((fields.get("event", "data"), json.loads(fields["data"])))
    return events


def faults(wanted: Wanted, text: str) -> Iterator[str]:
    """What does not hold, in words."""
    events = events_of(text)
    yield from _order_faults(wanted, events)
    yield from _common_faults(wanted, [data for name, data in events if name != "done"])
    if wanted.choices is not None:
        yield from _choice_faults(wanted.choices, events)
    if wanted.blocks is not None:
        yield from _block_faults(wanted.blocks, events)


def _order_faults(wanted: Wanted, events: Events) -> Iterator[str]:
    order = " ".join(name for name, _ in events if name != "ping")
    if wanted.order is not None and not re.fullmatch(wanted.order, order):
        yield f"the order is {order!r}"
    for key, checks in wanted.events.items():
        found = re.fullmatch(r"(.+?)(?:\[(-?\d+)\])?", key)
        assert found is not None
        same = [data for name, data in events if name == found[1]]
        number = int(found[2] or 0)
        if not -len(same) <= number < len(same):
            yield f"there is no event {key}"
            continue
        yield from (f"{key}: {fault}" for fault in wrong(same[number], checks))


def _common_faults(wanted: Wanted, frames: list[Any]) -> Iterator[str]:
    for number, frame in enumerate(frames):
        yield from (f"event {number}: {fault}" for fault in wrong(frame, wanted.every))
    for path in wanted.same:
        values = {repr(at(frame, path)) for frame in frames}
        if len(values) != 1:
            yield f"{path} changes: {values}"
    for path, number in wanted.count.items():
        found = sum(at(frame, path) not in (MISSING, None) for frame in frames)
        if found != number:
            yield f"{found} events have {path}, not {number}"


def _choice_faults(wanted: dict[int, str], events: Events) -> Iterator[str]:
    """Each choice has its role first, and one finish reason, at its end."""
    by_index: dict[int, list[Any]] = {}
    for name, data in events:
        for choice in data["choices"] if name == "data" else ():
            by_index.setdefault(choice["index"], []).append(choice)
    texts = {
        index: "".join(choice["delta"].get("content") or "" for choice in choices)
        for index, choices in by_index.items()
    }
    if texts != wanted:
        yield f"the choices are {texts}"
    for index, choices in by_index.items():
        roles = ["role" in choice["delta"] for choice in choices]
        ends = [choice["finish_reason"] is not None for choice in choices]
        if not roles[0] or any(roles[1:]):
            yield f"choice {index} does not have its role first and once"
        if not ends[-1] or any(ends[:-1]):
            yield f"choice {index} does not have one finish reason, at its end"


def _block_faults(wanted: list[Checks], events: Events) -> Iterator[str]:
    yield from (
        f"an event is named {name} and is of type {data['type']}"
        for name, data in events
        if name != data["type"]
    )
    blocks: list[dict[str, Any]] = []
    is_open = False
    for name, data in events:
        match name:
            case "content_block_start":
                if is_open or data["index"] != len(blocks):
                    yield f"block {data['index']} begins after {len(blocks)} others, out of turn"
                blocks.append({**data["content_block"], "partial_json": ""})
                is_open = True
            case "content_block_delta":
                field = GROWS.get((blocks[-1]["type"], data["delta"]["type"]))
                if field is None or not is_open or data["index"] != len(blocks) - 1:
                    yield f"{data} does not belong to the open block {blocks[-1]}"
                else:
                    blocks[-1][field] = blocks[-1].get(field, "") + data["delta"][field]
            case "content_block_stop":
                is_open = False
            case _:
                continue
    if len(blocks) != len(wanted):
        yield f"there are {len(blocks)} blocks: {blocks}"
    for number, (block, checks) in enumerate(zip(blocks, wanted, strict=False)):
        yield from (f"block {number}: {fault}" for fault in wrong(block, checks))
