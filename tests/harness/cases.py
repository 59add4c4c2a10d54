"""HTTP cases as data: a request and what has to be true of its answer, in YAML.

A file holds `cases:`, each with a `name`, a request, and expectations. The request is `post`, `get`
or `head` with a path, or `send` with any method and a path; `headers`; and as JSON its `body` or as
it is its `text`. It is sent `times` times, one after the other or all at once (`together`).

Expected are a `status` (one or several), `answer_headers` (regular expressions by name), `checks`
of the JSON body (see `checks`), `empty: true` for no body at all, a text that the answer `says` or
`never` says (regular expressions), and what makes a stream right (see `streamed`). With `times`,
the values at the paths in `alike` are the same in all answers.

In a body {$repeat: [value, n]} is a text or a list made of n times that value. `$NAME` in a text or
a path is what the test calls so, and `$I` the number of the request, from 1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

import httpx
import msgspec
import yaml

from tests.harness import streamed
from tests.harness.checks import Checks, at, wrong
from tests.harness.streamed import Wanted, events_of

__all__ = ["Case", "events_of", "load", "made", "run"]

FOLDER = Path(__file__).parents[1] / "fixtures" / "http"


class Case(Wanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    get: str | None = None
    post: str | None = None
    head: str | None = None
    send: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: Any = None
    text: str | None = None
    times: int = 1
    together: bool = False
    status: int | list[int] = 200
    answer_headers: dict[str, str] = msgspec.field(default_factory=dict)
    checks: Checks = msgspec.field(default_factory=dict)
    alike: list[str] = msgspec.field(default_factory=list)
    empty: bool = False
    says: str | None = None
    never: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def target(self) -> tuple[str, str]:
        """Method and path."""
        given = {"GET": self.get, "POST": self.post, "HEAD": self.head}
        targets = [(key, value) for key, value in given.items() if value is not None]
        if self.send is not None:
            method, _, path = self.send.partition(" ")
            targets.append((method, path))
        (target,) = targets
        return target


class _File(msgspec.Struct, forbid_unknown_fields=True):
    cases: list[Case]


def load(name: str) -> list[Case]:
    """The cases of one file in `tests/fixtures/http`."""
    return msgspec.convert(yaml.safe_load((FOLDER / name).read_text()), _File).cases


async def run(
    case: Case, client: httpx.AsyncClient, names: Mapping[str, str] | None = None
) -> list[httpx.Response]:
    """Sends the request and asserts everything that the case expects of each answer."""
    named = [{**(names or {}), "I": str(number)} for number in range(1, case.times + 1)]
    if case.together:
        answers = await asyncio.gather(*(_answer(case, client, known) for known in named))
    else:
        answers = [await _answer(case, client, known) for known in named]
    for answer in answers:
        faults = list(_faults(case, answer))
        assert not faults, "\n".join(
            [*faults, f"answer {answer.status_code}: {answer.text[:2000]}"]
        )
    for path in case.alike:
        values = {repr(at(answer.json(), path)) for answer in answers}
        assert len(values) == 1, f"{path} differs: {values}"
    return answers


async def _answer(
    case: Case, client: httpx.AsyncClient, names: Mapping[str, str]
) -> httpx.Response:
    method, path = case.target
    body = None if case.body is None else made(case.body, names)
    headers = dict(case.headers)
    if case.text is not None:
        headers = {"content-type": "application/json", **headers}
    return await client.request(
        method, made(path, names), headers=headers, json=body, content=case.text
    )


def made(value: Any, names: Mapping[str, str]) -> Any:
    """A body with its names filled in and its repetitions written out."""
    match value:
        case {"$repeat": [str(text), int(times)]}:
            return text * times
        case {"$repeat": [item, int(times)]}:
            return [made(item, names)] * times
        case str():
            return Template(value).safe_substitute(names)
        case dict():
            return {key: made(item, names) for key, item in value.items()}
        case list():
            return [made(item, names) for item in value]
        case _:
            return value


# --- judging --------------------------------------------------------------------------------------


def _faults(case: Case, answer: httpx.Response) -> Iterator[str]:
    wanted = case.status if isinstance(case.status, list) else [case.status]
    if answer.status_code not in wanted:
        yield f"the status is not {case.status}"
        return
    for header, pattern in case.answer_headers.items():
        if not re.search(pattern, answer.headers.get(header, "")):
            yield f"header {header} is {answer.headers.get(header)!r}, which is not /{pattern}/"
    if case.empty and answer.content:
        yield f"there is a body of {len(answer.content)} bytes"
    if case.says is not None and not re.search(case.says, answer.text):
        yield f"nothing in it is /{case.says}/"
    if case.never is not None and (found := re.search(case.never, answer.text)):
        yield f"it holds {found[0]!r}"
    if case.checks:
        yield from wrong(answer.json(), case.checks)
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        yield from streamed.faults(case, answer.text)
    elif case.order is not None or case.events:
        yield "it is no stream"
