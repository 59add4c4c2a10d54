"""A mixed load: clients of every kind of model at once, planned from a seed and judged.

`plan` is pure, so a seed replays who asks what when, and how each reads. A `Question` knows what is
wrong with its answer, so the load is the same for scripted and for real models. An answer has to be
complete, or a well-formed refusal; clients that leave are owed nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from tests.harness.daemon import Daemon
from tests.harness.observe import Observer
from tests.harness.stream import Frames

Manner = Literal["reads", "dawdles", "breaks off", "gives up", "hangs up"]
"""Breaking off is in the middle of the request, hanging up after the first bytes of the answer;
giving up is whenever patience ends, queued or running."""

MANNERS: Mapping[Manner, int] = {
    "reads": 6,
    "dawdles": 2,
    "breaks off": 1,
    "gives up": 1,
    "hangs up": 1,
}
"""How often each is met."""

PAUSE_S = 0.03
PAUSES = 60
CODES = frozenset({"no_capacity", "queue_full", "preempted"})
"""Refusals that nobody can be blamed for: there was no room."""

Request = dict[str, Any]
"""Arguments of an `httpx` request, beside method and address."""

Judge = Callable[[bytes], object]
"""Raises `AssertionError` for what is wrong with the body of a whole answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """`bare`: the answer is a file, which can only tell by its missing end that it failed."""

    path: str
    request: Request
    judge: Judge
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """One client: what it asks (a name among the questions), and how it reads."""

    at: float
    asks: str
    manner: Manner
    patience_s: float


def plan(seed: int, names: Sequence[str], count: int, per_s: float) -> list[Visit]:
    """Visits in order of time, `per_s` on average; everything is asked before anything again."""
    rng = random.Random(seed)
    visits: list[Visit] = []
    at = 0.0
    waiting: list[str] = []
    for _ in range(count):
        if not waiting:
            waiting = rng.sample(names, len(names))
        manner = rng.choices(list(MANNERS), weights=list(MANNERS.values()))[0]
        visits.append(Visit(at, waiting.pop(), manner, round(rng.uniform(0.05, 2.0), 3)))
        at += rng.expovariate(per_s)
    return visits


@dataclass(slots=True)
class Report:
    """`tally` counts how visits ended, `complete` which questions were answered to the end."""

    tally: Counter[str] = field(default_factory=Counter)
    complete: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    swaps: int = 0
    slowest_s: float = 0.0

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {what}" for what, count in self.tally.most_common())
        return (
            f"{self.tally.total()} visits: {ends}; {self.swaps} evictions; "
            f"the slowest took {self.slowest_s:.1f} s"
        )


class Clients:
    """Everyone who visits one gateway; owns the report. `bound_s` is how long a visit may take."""

    def __init__(
        self, gateway: Daemon, questions: Mapping[str, Question], bound_s: float = 120.0
    ) -> None:
        self.report = Report()
        self._gateway = gateway
        self._questions = questions
        self._bound_s = bound_s

    async def play(self, visits: Sequence[Visit]) -> Report:
        """All visits, then rest: no lease and no file is left. Counts the evictions meanwhile."""
        before = await _evictions(self._gateway)
        began = time.monotonic()
        async with Observer(self._gateway) as observer, asyncio.TaskGroup() as group:
            for visit in visits:
                group.create_task(self._visit(visit, began))
        await at_rest(self._gateway)
        report = self.report
        report.peak_bytes = max(report.peak_bytes, observer.peak_bytes)
        report.swaps += await _evictions(self._gateway) - before
        return report

    async def _visit(self, visit: Visit, began: float) -> None:
        await asyncio.sleep(began + visit.at - time.monotonic())
        question, report, came = self._questions[visit.asks], self.report, time.monotonic()
        patience_s = visit.patience_s if visit.manner == "gives up" else self._bound_s
        how = "left"
        try:
            async with asyncio.timeout(patience_s):
                if visit.manner == "breaks off":
                    await self._break_off(question)
                else:
                    how = await self._answered(question, visit)
        except TimeoutError:
            if visit.manner != "gives up":
                report.faults.append(f"{visit}: not answered within {patience_s} s")
        except (httpx.HTTPError, AssertionError, ValueError) as error:
            how = "broken"
            report.faults.append(f"{visit}: {error!r}"[:2000])
        report.tally[how] += 1
        report.slowest_s = max(report.slowest_s, time.monotonic() - came)

    async def _break_off(self, question: Question) -> None:
        """Sends half of what was promised, and leaves."""
        async with self._gateway.client() as client:
            whole = client.build_request("POST", question.path, **question.request)
            half = _half(await whole.aread())
            with contextlib.suppress(_Left):
                await client.post(question.path, content=half, headers=whole.headers)

    async def _answered(self, question: Question, visit: Visit) -> str:
        body = bytearray()
        async with (
            self._gateway.client() as client,
            client.stream(
                "POST", question.path, timeout=self._bound_s, **question.request
            ) as answer,
        ):
            try:
                await _read(answer, visit.manner, body)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                if not (question.bare and answer.status_code == 200):
                    raise
                return "cut"
            if visit.manner == "hangs up":
                return "left"
        if answer.status_code != 200:
            return f"refused: {_refusal(answer, bytes(body))}"
        if (code := _error_in(answer, bytes(body))) is not None:
            return f"ended in the stream: {code}"
        question.judge(bytes(body))
        self.report.complete[visit.asks] += 1
        return "complete"


class _Left(Exception):
    """A client has had enough."""


async def _half(content: bytes) -> AsyncIterator[bytes]:
    yield content[: len(content) // 2]
    raise _Left


async def _read(answer: httpx.Response, manner: Manner, body: bytearray) -> None:
    pauses = 0
    async for piece in answer.aiter_raw():
        body += piece
        if manner == "hangs up":
            return
        if manner == "dawdles" and pauses < PAUSES:
            pauses += 1
            await asyncio.sleep(PAUSE_S)


def _refusal(answer: httpx.Response, body: bytes) -> str:
    """The code of a well-formed refusal."""
    error = json.loads(body)["error"]
    code: str = error["code"]
    assert code in CODES, f"{answer.status_code} {body[:500]!r}"
    assert answer.status_code in (429, 503), answer.status_code
    assert error["message"], body
    assert int(answer.headers["retry-after"]) > 0
    return code


def _error_in(answer: httpx.Response, body: bytes) -> str | None:
    """The code of the error that ends an event stream; nothing of it looks complete then."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return None
    frames = read_frames(body)
    if frames.error is None:
        return None
    assert frames.error["code"] in CODES, frames.error
    frames.assert_failed(frames.error["code"])
    return str(frames.error["code"])


def read_frames(body: bytes) -> Frames:
    frames = Frames()
    for line in body.decode().splitlines():
        frames.take(line)
    return frames


async def _evictions(gateway: Daemon) -> int:
    status = await gateway.status()
    return sum(model["evictions"] for model in status["models"])


# --- afterwards -----------------------------------------------------------------------------------


def media_of(gateway: Daemon) -> list[Path]:
    """The uploads and images that are on disk now."""
    return list((gateway.folder / "state" / "run" / "media").iterdir())


async def at_rest(gateway: Daemon) -> None:
    """Waits until no call holds or wants anything, and no file of a request is left."""
    await gateway.until(
        lambda status: (
            all(model["leases"] == model["waiting"] == 0 for model in status["models"])
            and not media_of(gateway)
        )
    )


async def emptied(gateway: Daemon) -> None:
    """Unloads everything, and waits until all memory is back and no process is left."""
    async with gateway.client() as client:
        for model in (await gateway.status(client))["models"]:
            (await client.post(f"/v1/models/{model['name']}/unload")).raise_for_status()
    await gateway.until(
        lambda status: (
            not status["memory"]["committed_bytes"]
            and all(model["pid"] is None for model in status["models"])
            and not gateway.engines()
        )
    )
