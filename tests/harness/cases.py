"""HTTP cases as data: a request and what has to be true of its answer, in YAML.

A file holds `cases:`, each with a `name`, a request (`post`, `get` or `head` with a path;
`headers`; `body`), and expectations: `status` (one or several), `answer_headers` (regular
expressions by name), `checks` of the JSON body, `empty: true` for no body at all, and for a
stream `order` and `events`.

A check is a dotted path, where a number is an index, and what is there: a plain value, or one of
{ge: n}, {le: n}, {in: [...]}, {type: name}, {len: n}, {match: regex}, {absent: true}, {json: value}
(a string that is JSON). `order` is a regular expression for the names of the events, joined by
spaces, pings left out; an event without a name is called `data`, and the last of OpenAI's `done`.
`events` holds checks by name of the first such event, or by `name[n]` of the n-th from 0, negative
from the end. In a body {$repeat: [value, n]} is a text or a list made of n times that value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml

FOLDER = Path(__file__).parents[1] / "fixtures" / "http"

Checks = dict[str, Any]


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    get: str | None = None
    post: str | None = None
    head: str | None = None
    headers: dict[str, str] = {}
    body: Any = None
    status: int | list[int] = 200
    answer_headers: dict[str, str] = {}
    checks: Checks = {}
    empty: bool = False
    order: str | None = None
    events: dict[str, Checks] = {}

    def __str__(self) -> str:
        return self.name

    @property
    def target(self) -> tuple[str, str]:
        """Method and path."""
        given = {"GET": self.get, "POST": self.post, "HEAD": self.head}
        ((method, path),) = ((key, value) for key, value in given.items() if value is not None)
        return method, path


class _File(msgspec.Struct, forbid_unknown_fields=True):
    cases: list[Case]


def load(name: str) -> list[Case]:
    """The cases of one file in `tests/fixtures/http`."""
    return msgspec.convert(yaml.safe_load((FOLDER / name).read_text()), _File).cases


async def run(case: Case, client: httpx.AsyncClient) -> None:
    """Sends the request and asserts everything that the case expects."""
    method, path = case.target
    body = None if case.body is None else made(case.body)
    answer = await client.request(method, path, headers=case.headers, json=body)
    faults = list(_faults(case, answer))
    assert not faults, "\n".join([*faults, f"answer {answer.status_code}: {answer.text[:2000]}"])


def made(value: Any) -> Any:
    """A body with its repetitions written out."""
    match value:
        case {"$repeat": [str(text), int(times)]}:
            return text * times
        case {"$repeat": [item, int(times)]}:
            return [made(item)] * times
        case dict():
            return {key: made(item) for key, item in value.items()}
        case list():
            return [made(item) for item in value]
        case _:
            return value


def events_of(text: str) -> list[tuple[str, Any]]:
    """Name and data of every event of a stream; comments are left out."""
    events = []
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


# --- judging --------------------------------------------------------------------------------------


def _faults(case: Case, answer: httpx.Response) -> Iterator[str]:
    wanted = case.status if isinstance(case.status, list) else [case.status]
    if answer.status_code not in wanted:
        yield f"the status is not {case.status}"
    for header, pattern in case.answer_headers.items():
        if not re.search(pattern, answer.headers.get(header, "")):
            yield f"header {header} is {answer.headers.get(header)!r}, which is not /{pattern}/"
    if case.empty and answer.content:
        yield f"there is a body of {len(answer.content)} bytes"
    if case.checks:
        yield from _wrong(answer.json(), case.checks)
    if case.order is not None or case.events:
        yield from _stream_faults(case, answer.text)


def _stream_faults(case: Case, text: str) -> Iterator[str]:
    events = events_of(text)
    order = " ".join(name for name, _ in events if name != "ping")
    if case.order is not None and not re.fullmatch(case.order, order):
        yield f"the order is {order!r}"
    for key, checks in case.events.items():
        found = re.fullmatch(r"(.+?)(?:\[(-?\d+)\])?", key)
        assert found is not None
        same = [data for name, data in events if name == found[1]]
        number = int(found[2] or 0)
        if not -len(same) <= number < len(same):
            yield f"there is no event {key}"
            continue
        yield from (f"{key}: {fault}" for fault in _wrong(same[number], checks))


_MISSING = object()

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": lambda value, bound: value >= bound,
    "le": lambda value, bound: value <= bound,
    "in": lambda value, choices: value in choices,
    "type": lambda value, name: type(value).__name__ == name,
    "len": lambda value, length: len(value) == length,
    "match": lambda value, pattern: re.search(pattern, value) is not None,
    "json": lambda value, wanted: json.loads(value) == wanted,
}


def _wrong(value: Any, checks: Checks) -> Iterator[str]:
    for path, wanted in checks.items():
        found = _at(value, path)
        if not _holds(found, wanted):
            shown = "(absent)" if found is _MISSING else repr(found)
            yield f"{path} is {shown}, not {wanted!r}"


def _holds(found: Any, wanted: Any) -> bool:
    match wanted:
        case {"absent": True}:
            return found is _MISSING
        case dict() if len(wanted) == 1 and next(iter(wanted)) in _OPERATORS:
            ((operator, operand),) = wanted.items()
            return found is not _MISSING and _OPERATORS[operator](found, operand)
        case _:
            return bool(found == wanted)


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(value, list) and step.lstrip("-").isdecimal():
            number = int(step)
            value = value[number] if -len(value) <= number < len(value) else _MISSING
        elif isinstance(value, dict):
            value = value.get(step, _MISSING)
        else:
            return _MISSING
    return value
