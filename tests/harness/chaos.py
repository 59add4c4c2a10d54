"""Chaos: a plan of random actions made from a seed, played against a daemon, and judged.

`plan` is pure, so a seed replays its actions; how they interleave is the machine's affair. Every
request has to end in success or in a well-formed error within `BOUND_S`, whatever happens to its
model; clients that leave are owed nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.harness.daemon import Daemon, daemon, reply, scripted
from tests.harness.edits import Editor, How
from tests.harness.observe import GIB, Observer
from tests.harness.stream import Stream

WAIT_TIMEOUT_S = 6.0
STALL_S = 2.0
LONGEST_RUN_S = 3.0
BOUND_S = 1.5 * (WAIT_TIMEOUT_S + STALL_S + LONGEST_RUN_S + STALL_S)
"""Waiting for room, a load that stalls, the run, and a hang, on a machine that is shared."""

BUDGETS_GB = (9, 11, 13)
PEAK_BYTES = max(BUDGETS_GB) * GIB
MODELS = ("steady", "slow", "large", "flaky", "deadly", "sticky")
REQUESTS_PER_S = 4.0
MISHAPS_PER_S = 1.2

CODES = frozenset(
    {
        *("no_capacity", "queue_full", "preempted", "engine_crashed", "engine_hung"),
        *("load_failed", "model_not_found", "engine_error"),
    }
)
HOPELESS = frozenset({"model_not_found", "engine_error"})
"""Errors that promise nothing of a retry."""


# --- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    at: float
    model: str
    stream: bool
    tokens: int
    text: str = "hello"
    leave_s: float | None = None


@dataclass(frozen=True, slots=True)
class Kill:
    at: float
    model: str
    signal: signal.Signals


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stops a process for a while; then it goes on, or dies."""

    at: float
    model: str
    seconds: float
    then: signal.Signals


@dataclass(frozen=True, slots=True)
class Save:
    at: float
    text: str
    how: How


@dataclass(frozen=True, slots=True)
class Ask:
    at: float
    method: str
    path: str


Action = Request | Kill | Freeze | Save | Ask


def document(rng: random.Random | None = None) -> dict[str, Any]:
    """Six models and a budget for two; with `rng`, a variation of it."""
    models = [
        scripted("steady", 4, tokens_per_s=60, deltas=60),
        scripted("slow", 4, load_s=0.8, tokens_per_s=30, deltas=60, priority="low"),
        scripted("large", 6, load_s=0.3, tokens_per_s=60, deltas=60, priority="high"),
        scripted("flaky", 4, load_s=0.2, fail_loads=["error", "ok", "hang", "ok", {"exit": 139}]),
        scripted("deadly", 4, tokens_per_s=60, deltas=60, exit_after=90),
        scripted("sticky", 3, tokens_per_s=60, deltas=60, hang_after=80),
    ]
    budget = BUDGETS_GB[0]
    if rng is not None:
        budget = rng.choice(BUDGETS_GB)
        for entry in rng.sample(models, 2):
            entry["temperature"] = round(rng.random(), 2)
            entry["max_concurrency"] = rng.choice((1, 2, 8))
            entry["ttl_s"] = rng.choice((None, 0.5, 60))
        rng.choice(models)["scripted"]["load_s"] = round(rng.random(), 2)
        if rng.random() < 0.3:
            models.remove(rng.choice(models))
    return {
        "manager": {
            "memory_budget_gb": budget,
            "min_resident_s": 0.3,
            "max_wait_s": 2,
            "preempt_grace_s": 0.2,
            "drain_max_s": 2,
            "load_timeout_s": STALL_S,
            "hang_timeout_s": STALL_S,
            "first_step_timeout_s": STALL_S,
            "contention_policy": {
                "strategy": "wait_then_preempt",
                "wait_timeout_s": WAIT_TIMEOUT_S,
                "preempt_after_s": 1,
            },
        },
        "models": models,
    }


def plan(seed: int, seconds: float) -> list[Action]:
    """What to do, in order of time."""
    rng = random.Random(seed)
    actions: list[Action] = []
    at = 0.0
    while at < seconds:
        at += rng.expovariate(REQUESTS_PER_S + MISHAPS_PER_S)
        share = REQUESTS_PER_S / (REQUESTS_PER_S + MISHAPS_PER_S)
        actions.append(_request(rng, at) if rng.random() < share else _mishap(rng, at))
    return actions


def _request(rng: random.Random, at: float) -> Request:
    text = rng.choices(
        ("hello", '{"script": ["a ", {"sleep": 0.5}, "b "]}', '{"script": [{"raise": "oh"}]}'),
        weights=(20, 2, 1),
    )[0]
    leaves = rng.random() < 0.2
    return Request(
        at,
        rng.choice(MODELS),
        stream=rng.random() < 0.6,
        tokens=rng.randint(1, 60),
        text=text,
        leave_s=round(rng.uniform(0.02, 1.5), 3) if leaves else None,
    )


def _mishap(rng: random.Random, at: float) -> Action:
    model = rng.choice(MODELS)
    match rng.choices(("kill", "freeze", "save", "ask"), weights=(6, 2, 6, 6))[0]:
        case "kill":
            return Kill(at, model, rng.choice((signal.SIGKILL, signal.SIGABRT)))
        case "freeze":
            then = rng.choice((signal.SIGCONT, signal.SIGKILL))
            return Freeze(at, model, round(rng.uniform(0.2, 1.5), 2), then)
        case "save":
            how: How = rng.choice(("write", "rename", "symlink", "signal", "admin"))
            broken = rng.random() < 0.2
            text = "models: [" if broken else yaml.safe_dump(document(rng))
            return Save(at, text, how)
        case _:
            asks = (("POST", "load"), ("POST", "unload"), ("PUT", "pin"), ("DELETE", "pin"))
            method, verb = rng.choices(asks, weights=(4, 4, 1, 3))[0]
            return Ask(at, method, f"/v1/models/{model}/{verb}")


async def withstand(seed: int, seconds: float, folder: Path) -> Report:
    """Plays the plan of a seed against a daemon of its own, which has to live and to end well."""
    replay = f"CHAOS_SEED={seed} for {seconds:g} s"
    with daemon(document(), folder) as gateway:
        pid = gateway.pid
        report = await Player(gateway).play(plan(seed, seconds))
        assert gateway.process.poll() is None, f"{replay}: the gateway has ended"
        assert gateway.pid == pid
    assert report.faults == [], f"{replay}: {report}"
    assert report.tally["complete"] >= report.tally.total() / 5, f"{replay}: {report}"
    bugs = re.findall(r".*(?:Traceback|this is a bug|could not execute).*", gateway.log)
    assert bugs == [], f"{replay}: {gateway.log[-5000:]}"
    return report


# --- playing it -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Report:
    """`tally` counts how requests ended; `faults` is everything that must not be."""

    tally: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {what}" for what, count in self.tally.most_common())
        return f"{self.tally.total()} requests: {ends}; the slowest took {self.slowest_s:.1f} s"


class Player:
    """Plays one plan; owns its report and the registry file."""

    def __init__(self, gateway: Daemon) -> None:
        self.report = Report()
        self._gateway = gateway
        self._editor = Editor(document(), gateway.folder / "registry.yaml")

    async def play(self, actions: list[Action]) -> Report:
        """Everything of the plan, then the original registry, rest, and an empty gateway."""
        gateway, faults = self._gateway, self.report.faults
        began = time.monotonic()
        async with Observer(gateway) as observer, asyncio.TaskGroup() as group:
            for action in actions:
                group.create_task(self._act(action, began))
        if observer.peak_bytes > PEAK_BYTES:
            faults.append(f"{observer.peak_bytes / GIB:.1f} GiB were committed")
        await self._save(Save(0, yaml.safe_dump(document()), "write"))
        await self._empty()
        faults += [f"pid {engine.pid} is left" for engine in gateway.engines()]
        return self.report

    async def _empty(self) -> None:
        """No lease is left; unloaded, nothing is committed."""
        gateway = self._gateway
        names = set(MODELS)
        await gateway.until(lambda s: {model["name"] for model in s["models"]} == names)
        await gateway.until(
            lambda s: all(model["leases"] == model["waiting"] == 0 for model in s["models"])
        )
        async with gateway.client() as client:
            for name in MODELS:
                (await client.delete(f"/v1/models/{name}/pin")).raise_for_status()
                (await client.post(f"/v1/models/{name}/unload")).raise_for_status()
        await gateway.until(
            lambda s: (
                not s["memory"]["committed_bytes"]
                and all(model["pid"] is None for model in s["models"])
            )
        )

    async def _act(self, action: Action, began: float) -> None:
        await asyncio.sleep(began + action.at - time.monotonic())
        match action:
            case Request():
                await self._request(action)
            case Kill():
                for process in await self._process(action.model):
                    process.send_signal(action.signal)
            case Freeze():
                for process in await self._process(action.model):
                    process.suspend()
                    await asyncio.sleep(action.seconds)
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(action.then)
            case Save():
                await self._save(action)
            case Ask():
                await self._ask(action)

    async def _process(self, model: str) -> list[psutil.Process]:
        """Its engine, if it has one."""
        status = await self._gateway.status()
        with contextlib.suppress(psutil.NoSuchProcess):
            return [
                psutil.Process(view["pid"])
                for view in status["models"]
                if view["name"] == model and view["pid"] is not None
            ]
        return []

    async def _save(self, save: Save) -> None:
        self._editor.put(save.text, save.how)
        if save.how == "signal":
            self._gateway.signal(signal.SIGHUP)
        elif save.how == "admin":
            async with self._gateway.client() as client:
                answer = await client.post("/admin/reload")
            if answer.status_code not in (200, 400):
                self.report.faults.append(f"reload: {answer.status_code} {answer.text[:200]}")

    async def _ask(self, ask: Ask) -> None:
        async with self._gateway.client() as client:
            answer = await client.request(ask.method, ask.path)
        if answer.status_code not in (200, 202, 404, 503):
            what = f"{ask.method} {ask.path}: {answer.status_code} {answer.text[:200]}"
            self.report.faults.append(what)

    # --- requests -----------------------------------------------------------------------------

    async def _request(self, request: Request) -> None:
        began = time.monotonic()
        how = "left"
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.leave_s):
                    how = await self._answered(request)
        except httpx.HTTPError as error:
            how = f"broken ({type(error).__name__})"
            self.report.faults.append(f"{request}: {error!r}")
        took = time.monotonic() - began
        self.report.tally[how] += 1
        self.report.slowest_s = max(self.report.slowest_s, took)
        if took > BOUND_S:
            self.report.faults.append(f"{request}: {how} only after {took:.1f} s")

    async def _answered(self, request: Request) -> str:
        if not request.stream:
            answer = await self._gateway.chat(
                request.model, request.text, max_tokens=request.tokens
            )
            return self._judge(request, answer.status_code, answer.headers, answer.text)
        async with self._gateway.stream(
            request.model, request.text, max_tokens=request.tokens
        ) as stream:
            if stream.status != 200:
                body = (await stream.response.aread()).decode()
                return self._judge(request, stream.status, stream.response.headers, body)
            await stream.rest()
        return self._judge_stream(request, stream)

    def _judge(self, request: Request, status: int, headers: httpx.Headers, body: str) -> str:
        """How it ended; what is not well-formed is a fault."""
        answer = json.loads(body)
        if status == 200:
            choice = answer["choices"][0]
            self._judge_text(request, choice["message"]["content"], choice["finish_reason"])
            return "complete"
        error = answer["error"]
        code = error["code"]
        promised = "retry-after" in headers
        hopeless = code in HOPELESS or "was removed from the registry" in error["message"]
        if code not in CODES or not error["message"] or promised == hopeless:
            self.report.faults.append(f"{request}: {status} {dict(headers)} {body[:300]}")
        return f"refused: {code}"

    def _judge_stream(self, request: Request, stream: Stream) -> str:
        if stream.error is None:
            if not stream.done or len(stream.finish_reasons) != 1:
                self.report.faults.append(f"{request}: cut: {stream.frames[-2:]}")
                return "cut"
            self._judge_text(request, stream.text, stream.finish_reasons[0])
            return "complete"
        code = stream.error["code"]
        looks_complete = stream.done or stream.finish_reasons or "error" not in stream.frames[-1]
        if code not in CODES or not stream.error["message"] or looks_complete:
            self.report.faults.append(f"{request}: {stream.frames[-2:]}")
        return f"ended in the stream: {code}"

    def _judge_text(self, request: Request, text: str, reason: str) -> None:
        words = text.split()
        plain = request.text == "hello" and request.model != "flaky"
        wrong = plain and text != reply(request.tokens)
        if wrong or len(words) > request.tokens or reason not in ("stop", "length"):
            self.report.faults.append(f"{request}: answered {reason} {text[:200]!r}")
