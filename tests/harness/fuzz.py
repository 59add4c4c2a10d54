"""Any body to any route that takes one: a well-formed answer, as the OpenAPI document has it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import httpx
import psutil
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from gateway import app
from gateway.api.admin import Admin, Reload
from gateway.api.events import EventBus, Events
from gateway.api.logs import Logs
from gateway.api.openapi import OPERATIONS, Operation, document
from gateway.api.operate import LastReload, Operate
from gateway.logs.ring import LogBook
from gateway.metrics import Metrics
from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.router import Router
from gateway.served import Live, Served
from gateway.server import App
from gateway.supervisor.probe import ScriptedProbe
from tests.harness.bodies import JSON, MODEL, any_body, encoded
from tests.harness.in_process import InProcess, in_process, scripted_model

TIMEOUT_S = 60.0
GIB = 2**30
ROUND = 500
GROWTH_BYTES = 32 * 2**20

ANTHROPIC = "/v1/messages"


class NoReload:
    """Reloads nothing: there is no file."""

    last = None

    async def reload(self, cause: str) -> NoReload:
        return self

    @property
    def result(self) -> str:
        return "unchanged"

    def to_builtins(self) -> dict[str, Any]:
        return {"result": "unchanged", "cause": "", "at": 0.0, "plan": None, "problems": []}


def gateway(made: InProcess) -> App:
    """The application around a supervisor of this process."""
    models = [scripted_model(MODEL, pin=True), scripted_model("idle")]
    live = Live(Served(Loaded(), Router(models), Server()))
    metrics, bus = Metrics(), EventBus()
    reloads = NoReload()
    probe = ScriptedProbe()
    operate = Operate(live, made.supervisor, probe, metrics, cast(LastReload, reloads))
    admin = Admin(live, made.supervisor, cast(Reload, reloads), made.tasks, bus)
    events = Events(live, made.supervisor, made.tasks, bus)
    control = app.Control(operate, admin, events, Logs(live, made.tasks, LogBook()))
    return app.build(live, made.supervisor, made.tasks, metrics, control)


class Fuzz:
    """Sends bodies, judges answers, and counts what it has seen by route and status."""

    def __init__(self, asgi: App) -> None:
        transport = httpx.ASGITransport(cast(Any, asgi), raise_app_exceptions=True)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self._document = document()
        self._validators: dict[tuple[str, str, int], Validator] = {}
        self.seen: Counter[tuple[str, int]] = Counter()

    async def ask(self, operation: Operation, path: str, body: bytes) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await self._client.request(
                operation.method.upper(),
                path,
                content=body,
                headers={"content-type": "application/json"},
            )
        self.seen[operation.path, answer.status_code] += 1
        assert answer.status_code < 500 or answer.status_code in (503, 504, 529), answer.text
        faults = list(self._faults(operation, answer))
        assert not faults, f"{faults} in {answer.status_code} {answer.text[:2000]}"

    def _faults(self, operation: Operation, answer: httpx.Response) -> Iterator[str]:
        kind = answer.headers["content-type"].partition(";")[0]
        if kind == "text/event-stream":
            yield from _stream_faults(operation.path, answer.text)
            return
        body = answer.json()
        validator = self._validator(operation, answer.status_code)
        yield from (error.message for error in validator.iter_errors(body))
        if answer.status_code >= 400:
            is_anthropic = body.get("type") == "error"
            if is_anthropic != operation.path.startswith(ANTHROPIC):
                yield "the error is of another dialect"

    def _validator(self, operation: Operation, status: int) -> Validator:
        key = (operation.path, operation.method, status)
        if key not in self._validators:
            described = self._document["paths"][operation.path][operation.method]["responses"]
            schema = described[str(status)]["content"]["application/json"]["schema"]
            whole = {**schema, "components": self._document["components"]}
            self._validators[key] = Draft202012Validator(whole)
        return self._validators[key]


def _stream_faults(path: str, text: str) -> Iterator[str]:
    """What is wrong with a whole stream: every event is JSON, and it ends as its dialect says."""
    if not text.endswith("\n\n"):
        yield "the last event is not complete"
    events: list[Any] = []
    for frame in filter(None, text.split("\n\n")):
        data = [line.removeprefix("data: ") for line in frame.split("\n") if line[:6] == "data: "]
        events += [piece if piece == "[DONE]" else json.loads(piece) for piece in data]
    last = events[-1]
    failed = last != "[DONE]" and ("error" in last or last.get("type") == "error")
    if path.startswith(ANTHROPIC):
        ended = failed or last["type"] == "message_stop"
    elif path == "/v1/responses":
        ended = failed or last["type"] in (
            "response.completed",
            "response.incomplete",
            "response.failed",
        )
    else:
        ended = failed or last == "[DONE]"
    if not ended:
        yield f"the stream ends with {last}"


def posts() -> st.SearchStrategy[tuple[Operation, str, bytes]]:
    """A route that takes a body, a path for it, and a body."""
    taking = [operation for operation in OPERATIONS if operation.method in ("post", "put")]
    generating = [operation for operation in taking if operation.body and operation.answers]
    return st.sampled_from([*taking, *generating * 3]).flatmap(_post)


def _post(operation: Operation) -> st.SearchStrategy[tuple[Operation, str, bytes]]:
    # Nothing is loaded or unloaded again and again: that is slow, and tested elsewhere.
    model = "idle" if operation.path.endswith("/unload") else MODEL
    body = any_body(operation.body) if operation.body else JSON.map(encoded)
    path = operation.path.replace("{model}", model).replace("{id}", "none")
    return st.tuples(st.just(operation), st.just(path), body)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Fuzz]:
    models = (scripted_model(MODEL, pin=True, preload=True), scripted_model("idle"))
    async with in_process(models, 8 * GIB) as made:
        yield Fuzz(gateway(made))


def withstand(bodies: int) -> Counter[tuple[str, int]]:
    """Sends so many bodies; what was seen, by route and status. Memory has to stay as it is."""
    first = 0
    with asyncio.Runner() as runner:
        context = running()
        fuzz = runner.run(context.__aenter__())
        try:
            while fuzz.seen.total() < bodies:
                _send(runner, fuzz, min(ROUND, bodies - fuzz.seen.total()))
                first = first or _memory_bytes()
        finally:
            runner.run(context.__aexit__(None, None, None))
    growth = _memory_bytes() - first
    assert growth < GROWTH_BYTES, f"{growth:,} bytes more than after {ROUND} bodies"
    return fuzz.seen


def _send(runner: asyncio.Runner, fuzz: Fuzz, bodies: int) -> None:
    """One round. Hypothesis keeps what it has tried, so a long run is made of short ones."""

    @seed(random.randrange(2**32))
    @settings(
        max_examples=bodies, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(posts())
    def send(post: tuple[Operation, str, bytes]) -> None:
        runner.run(fuzz.ask(*post))

    send()


def _memory_bytes() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size
