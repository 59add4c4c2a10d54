"""Timelines: a registry, steps in time, and what must come of them, all of it data.

A step begins when everything it waits for holds: seconds since the start (`at`), other steps
(`after`: `id` when that one is over, `id:text` when its stream has shown text), a model's status
(`when`), and then `pause_s`. Steps know nothing of each other beyond that. `run` owns the daemon
and the registry file; `expectations.compare` judges what it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, assert_never

import msgspec
import psutil
import yaml

from tests.harness.daemon import POLL_S, Daemon, Status, daemon, living
from tests.harness.edits import Edit, Editor, How
from tests.harness.observe import Observer, loads_in, metric
from tests.harness.stream import Stream

LIMIT_S = 90.0
STEP_LIMIT_S = 60.0


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """What every step has: an id, and what it waits for."""

    id: str
    at: float = 0.0
    after: tuple[str, ...] = ()
    when: dict[str, dict[str, Any]] = {}
    pause_s: float = 0.0


class Chat(Step, frozen=True, kw_only=True, tag="chat"):
    """One request, with `more` in its body. `leave_s`: the client goes away after so long."""

    model: str
    tokens: int | None = None
    stream: bool = False
    text: str = "hello"
    leave_s: float | None = None
    more: dict[str, Any] = {}


class Kill(Step, frozen=True, kw_only=True, tag="kill"):
    """A signal to the engine of a model; nothing when it has none."""

    model: str
    signal: str = "SIGKILL"


class Reload(Step, frozen=True, kw_only=True, tag="reload"):
    """A change of the registry, or none, and a way to have it read; over when it was read.

    `times`: so many saves `gap_s` apart, each with another comment at the end; 0 saves nothing.
    """

    change: Edit = Edit()
    how: How = "write"
    times: int = 1
    gap_s: float = 0.05


class Admin(Step, frozen=True, kw_only=True, tag="admin"):
    """A request of an operator, such as `POST /v1/models/a/unload`."""

    ask: str
    body: dict[str, Any] | None = None


class Wait(Step, frozen=True, kw_only=True, tag="wait"):
    """Nothing but waiting: the assertion that what it waits for comes true."""


AnyStep = Chat | Kill | Reload | Admin | Wait


class Fate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a stream ends: complete with so many `tokens`, or with the error event `error`.

    `within_s` counts from the end of step `of`; `not_before_s` does so too.
    """

    tokens: int | None = None
    error: str | None = None
    of: str | None = None
    within_s: float | None = None
    not_before_s: float | None = None


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Only what is named is checked. `errors` holds a pattern of `code: message` by step."""

    status: dict[str, int | tuple[int, ...]] = {}
    errors: dict[str, str] = {}
    headers: dict[str, dict[str, str]] = {}
    within_s: dict[str, float] = {}
    streams: dict[str, Fate] = {}
    loads: dict[str, int] = {}
    loads_at_most: dict[str, int] = {}
    evictions: dict[str, int] = {}
    crashes: dict[str, int] = {}
    peak_gb: float | None = None
    reloads: dict[str, int] = {}
    order: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One timeline. `variants` replace keys of the case, deep, by the name of the variant."""

    id: str
    why: str
    registry: dict[str, Any]
    steps: tuple[AnyStep, ...]
    expect: Expected


def read_cases(folder: Path) -> list[Case]:
    """Every case of every file of the folder, variants written out."""
    cases = []
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load(path.read_text()):
            variants = document.pop("variants", None) or {"": {}}
            for name, change in variants.items():
                merged = merge(document, change)
                merged["id"] = f"{document['id']}-{name}" if name else document["id"]
                cases.append(msgspec.convert(merged, Case, strict=True))
    return cases


def merge(base: Any, change: Any) -> Any:
    """`base` with the keys of `change` in place of its own, mappings key by key.

    A list is changed by a mapping of positions or, where its items have one, ids or names.
    """
    if isinstance(base, dict) and isinstance(change, dict):
        return base | {key: merge(base.get(key), value) for key, value in change.items()}
    if isinstance(base, list) and isinstance(change, dict):
        return [merge(item, change.get(_called(item), {})) for item in base]
    return change


def _called(item: Any) -> Any:
    return item.get("id", item.get("name")) if isinstance(item, dict) else None


# --- what came of it ------------------------------------------------------------------------------


@dataclass(slots=True)
class Result:
    """One step's outcome; times in seconds since the start of the timeline."""

    began: float
    ended: float = 0.0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    stream: Stream | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that `compare` looks at."""

    results: dict[str, Result]
    observer: Observer
    loads: dict[str, int]
    evictions: dict[str, float]
    crashes: dict[str, float]
    reloads: dict[str, float]
    end: Status
    engine_pids: frozenset[int]
    strays: list[str]


class Timeline:
    """One run of one case; owns the marks that steps wait for, and the registry file."""

    QUIET: ClassVar[float] = 30.0

    def __init__(self, case: Case, gateway: Daemon) -> None:
        self.results: dict[str, Result] = {}
        self._case = case
        self._gateway = gateway
        self._editor = Editor(case.registry, gateway.folder / "registry.yaml")
        self._began = time.monotonic()
        names = [step.id for step in case.steps]
        assert len(set(names)) == len(names), "two steps with one id"
        marks = [f"{name}{suffix}" for name in names for suffix in ("", ":text")]
        self._marks = {mark: asyncio.Event() for mark in marks}

    async def run(self) -> Record:
        """Runs every step to its end, lets the daemon come to rest, and looks at everything."""
        gateway = self._gateway
        async with Observer(gateway) as observer:
            async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
                for step in self._case.steps:
                    group.create_task(self._step(step))
            await gateway.until(at_rest, self.QUIET)
            page = (await gateway.get("/metrics")).text
            end = await gateway.status()
            pids = frozenset(process.pid for process in living(gateway.engines()))
        return Record(
            self.results,
            observer,
            loads=loads_in(gateway.log),
            evictions=metric(page, "model_evictions_total"),
            crashes=metric(page, "engine_exits_total", cause="crashed"),
            reloads=metric(page, "reloads_total", label="outcome"),
            end=end,
            engine_pids=pids,
            strays=await _clear(gateway, end),
        )

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _step(self, step: AnyStep) -> None:
        async with asyncio.timeout(STEP_LIMIT_S):
            await asyncio.sleep(step.at)
            for mark in step.after:
                await self._marks[mark].wait()
            result = self.results[step.id] = Result(self._now())
            for model, values in step.when.items():
                await self._gateway.until(partial(_matches, model, values))
            await asyncio.sleep(step.pause_s)
            if not isinstance(step, Wait):
                result.began = self._now()
            await self._do(step, result)
            result.ended = self._now()
            self._marks[step.id].set()

    async def _do(self, step: AnyStep, result: Result) -> None:
        match step:
            case Chat():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(step.leave_s):
                        await (self._stream if step.stream else self._whole)(step, result)
            case Kill():
                pid = (await self._gateway.model(step.model))["pid"]
                with contextlib.suppress(ProcessLookupError):
                    if pid is not None:
                        os.kill(pid, signal.Signals[step.signal])
            case Reload():
                await self._reload(step, result)
            case Admin():
                method, path = step.ask.split(" ", 1)
                async with self._gateway.client() as client:
                    _take(result, await client.request(method, path, json=step.body))
            case Wait():
                pass
            case _:
                assert_never(step)

    async def _whole(self, step: Chat, result: Result) -> None:
        answer = await self._gateway.chat(step.model, step.text, **_fields(step))
        _take(result, answer)

    async def _stream(self, step: Chat, result: Result) -> None:
        async with self._gateway.stream(step.model, step.text, **_fields(step)) as stream:
            result.status, result.headers = stream.status, dict(stream.response.headers)
            if stream.status != 200:
                result.body = (await stream.response.aread()).decode()
                return
            result.stream = stream
            while await stream.next() is not None:
                if stream.text:
                    self._marks[f"{step.id}:text"].set()

    async def _reload(self, step: Reload, result: Result) -> None:
        before = await self._reloads()
        if step.how == "admin":
            self._editor.save(step.change, "write")
            async with self._gateway.client() as client:
                _take(result, await client.post("/admin/reload"))
        else:
            for number in range(step.times):
                if number:
                    await asyncio.sleep(step.gap_s)
                self._editor.save(step.change, step.how, f"{step.id} {number}")
            if step.how == "signal":
                self._gateway.signal(signal.SIGHUP)
        deadline = self._now() + STEP_LIMIT_S
        while await self._reloads() == before:
            assert self._now() < deadline, "the registry was not read again"
            await asyncio.sleep(POLL_S)

    async def _reloads(self) -> float:
        page = (await self._gateway.get("/metrics")).text
        return sum(metric(page, "reloads_total", label="outcome").values())


def _fields(step: Chat) -> dict[str, Any]:
    return step.more if step.tokens is None else {**step.more, "max_tokens": step.tokens}


def at_rest(status: Status) -> bool:
    """No call runs or waits, and no process comes or goes."""
    return all(
        model["leases"] == model["waiting"] == 0
        and model["state"] in ("unloaded", "ready", "failed", "unavailable")
        for model in status["models"]
    )


def _matches(model: str, values: dict[str, Any], status: Status) -> bool:
    """Whether a model's status has these values; the state `absent` is that of no model."""
    found = next((view for view in status["models"] if view["name"] == model), {"state": "absent"})
    return all(found.get(key) == value for key, value in values.items())


def _take(result: Result, answer: Any) -> None:
    result.status, result.headers, result.body = (
        answer.status_code,
        dict(answer.headers),
        answer.text,
    )


async def _clear(gateway: Daemon, end: Status) -> list[str]:
    """Unloads everything; returns what is left that should not be."""
    async with gateway.client() as client:
        for model in end["models"]:
            answer = await client.post(f"/v1/models/{model['name']}/unload")
            assert answer.status_code < 300, answer.text
    status = await gateway.until(lambda s: at_rest(s) and not s["memory"]["committed_bytes"])
    strays = [f"{m['name']} still has pid {m['pid']}" for m in status["models"] if m["pid"]]
    for process in gateway.engines():
        with contextlib.suppress(psutil.NoSuchProcess):
            strays.append(f"pid {process.pid} is left: {process.status()}")
    return strays


async def run(case: Case, folder: Path) -> Record:
    """Runs a case against a daemon of its own, which has to end well afterwards."""
    with daemon(case.registry, folder) as gateway:
        pid = gateway.pid
        record = await Timeline(case, gateway).run()
        assert gateway.process.poll() is None
        assert gateway.pid == pid
    assert not re.search(r"Traceback|this is a bug", gateway.log), gateway.log
    return record
