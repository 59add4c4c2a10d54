"""Takes over a changed registry as one transaction: read, check, compare, apply, or leave it all.

The reload itself is one synchronous step of the supervisor, so it cannot half-happen; whatever
goes wrong before it leaves everything as it was. Reloads run one at a time; asked for during
another one, the next begins when that is over, once, with whatever the file says then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gateway.logs.lines import Form
from gateway.registry.diff import Plan, compare
from gateway.registry.find import recheck
from gateway.registry.last_good import LastGood
from gateway.registry.problems import Problem
from gateway.registry.schema import Manager
from gateway.residency import Policy
from gateway.served import Live, Served
from gateway.supervisor.setup import Setup
from gateway.supervisor.standby import default_count
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.watch import Patience
from gateway.threads import in_thread
from gateway.watcher import digest, watch_file

log = logging.getLogger("gateway.reload")

FILE_CHANGED = "the file changed"
FILES_EVERY_S = 2.0
STOP_S = 2.0
"""How long a reload at hand may still take at the end; what reads a dead volume is left behind."""

READ_S = 60.0
"""One that has not read everything by then is refused: it would keep every later one from its turn.
What reads the dead volume is left behind until that is back."""

NO_FILE = Problem(
    "error", "", 0, "", "the gateway was started without a registry file; start it with one"
)
TOO_SLOW = Problem(
    "error",
    "",
    0,
    "",
    "the registry and the folders of its models could not be read in time; look for a volume that "
    "has gone, or sleeps, and reload again",
)


@dataclass(frozen=True, slots=True)
class Read:
    """A registry as read: ready to be served, or None with the problems that are in the way."""

    served: Served | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the last reload went: `applied`, `unchanged` or `refused`."""

    result: str
    cause: str
    at: float
    plan: Plan | None
    problems: tuple[Problem, ...]

    def to_builtins(self) -> dict[str, Any]:
        return {
            "result": self.result,
            "cause": self.cause,
            "at": self.at,
            "plan": None if self.plan is None else self.plan.to_builtins(),
            "problems": [msgspec.to_builtins(problem) for problem in self.problems],
        }


class Notes(Protocol):
    def reloaded(self, outcome: str, lines: Iterable[str]) -> None:
        """Hears of every reload."""


class Reloader:
    """Owns what is in force: nothing else sets `live.now`."""

    def __init__(
        self,
        read: Callable[[], Read] | None,
        live: Live,
        supervisor: Supervisor,
        notes: Notes,
        last_good: LastGood | None = None,
        use_log_format: Callable[[Form], None] = lambda form: None,
    ) -> None:
        self.last: Outcome | None = None
        self._read = read
        self._live = live
        self._supervisor = supervisor
        self._notes = notes
        self._last_good = last_good
        self._use_log_format = use_log_format
        self._one_at_a_time = asyncio.Lock()
        self._asked: list[str] = []
        self._wake = asyncio.Event()
        self._config: Path | None = None
        self._seen: str | None = None

    def refused_at_start(self, problems: tuple[Problem, ...]) -> None:
        """The file is broken, and what is in force is the last good copy of it, or nothing."""
        self._note(Outcome("refused", "start", time.time(), None, problems))

    def ask(self, cause: str) -> None:
        """Reload soon; asking again before that changes nothing."""
        if cause not in self._asked:
            self._asked.append(cause)
        self._wake.set()

    async def run(self, config: Path | None, stop: asyncio.Event) -> None:
        """Serves `ask`, and watches the file, until `stop` is set and at most `STOP_S` longer."""
        async with asyncio.TaskGroup() as group:
            work = group.create_task(self._work(config, stop))
            await stop.wait()
            self.ask("")
            await asyncio.wait([work], timeout=STOP_S)
            work.cancel()

    async def _work(self, config: Path | None, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            if self.last is None:
                await self._keep()
            if config is not None and self._read is not None:
                self._config = config
                self._seen = await in_thread(digest, config)
                group.create_task(
                    watch_file(config, lambda: self.ask(FILE_CHANGED), stop, known=self._seen)
                )
                group.create_task(self._look_for_files(config.parent.absolute(), stop))
            group.create_task(self._serve_asks())

    async def _serve_asks(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            causes, self._asked = self._asked, []
            if "" in causes:
                return
            if causes and not await self._knows_already(causes):
                try:
                    await self.reload(" and ".join(dict.fromkeys(causes)))
                except Exception:  # a fault here must not end what is being served
                    log.exception("a reload failed inside the gateway; this is a bug")

    async def _knows_already(self, causes: list[str]) -> bool:
        """Whether somebody else's reload has read the saved file before the watch told of it."""
        if set(causes) != {FILE_CHANGED} or self._config is None:
            return False
        try:
            async with asyncio.timeout(READ_S):
                return await in_thread(digest, self._config) == self._seen
        except TimeoutError:
            return False

    async def _look_for_files(self, base: Path, stop: asyncio.Event) -> None:
        """Reloads once a model's files are there that were missing: a volume, a download."""
        told: frozenset[str] = frozenset()
        while not stop.is_set():
            there = await in_thread(_with_files, self._live.now, base)
            if there - told:
                self.ask(f"the files of {', '.join(sorted(there - told))} are there")
            told = there
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FILES_EVERY_S):
                    await stop.wait()

    async def reload(self, cause: str) -> Outcome:
        """Reads the file again and takes over what has changed."""
        async with self._one_at_a_time:
            if self._read is None:
                return self._note(Outcome("refused", cause, time.time(), None, (NO_FILE,)))
            try:
                async with asyncio.timeout(READ_S):
                    if self._config is not None:
                        self._seen = await in_thread(digest, self._config)
                    read = await in_thread(self._read)
            except TimeoutError:
                return self._note(Outcome("refused", cause, time.time(), None, (TOO_SLOW,)))
            outcome = self._note(self._apply(read, cause))
            if outcome.result != "refused":
                await self._keep()
            return outcome

    async def _keep(self) -> None:
        """Has what is in force outlast a file that gets broken."""
        text = self._live.now.loaded.text
        if self._last_good is None or not text:
            return
        if (problem := await in_thread(self._last_good.keep, text)) is not None:
            log.warning("%s", problem)

    def _apply(self, read: Read, cause: str) -> Outcome:
        if read.served is None:
            return Outcome("refused", cause, time.time(), None, read.problems)
        plan = compare(_effective(self._live.now), _effective(read.served))
        self._supervisor.reload(setup(read.served), frozenset(plan.names("restarted")))
        self._live.now = read.served
        logging.getLogger().setLevel(read.served.server.log_level.upper())
        self._use_log_format(read.served.server.log_format)
        result = "unchanged" if plan.empty else "applied"
        return Outcome(result, cause, time.time(), plan, read.problems)

    def _note(self, outcome: Outcome) -> Outcome:
        self.last = outcome
        lines = [f"{outcome.result} ({outcome.cause})", *map(str, outcome.problems)]
        if outcome.plan is not None and not outcome.plan.empty:
            lines += outcome.plan.lines()
        self._notes.reloaded(outcome.result, lines)
        return outcome


def _effective(served: Served) -> Any:
    """What was loaded, with the server settings as flags and variables have them."""
    assert served.loaded.registry is not None
    registry = msgspec.structs.replace(served.loaded.registry, server=served.server)
    return msgspec.structs.replace(served.loaded, registry=registry)


def _with_files(served: Served, base: Path) -> frozenset[str]:
    """Models that count as unavailable although their files can be loaded now."""
    missing = [m for m in served.router.models if m.unavailable is not None and not m.entry.of]
    found = (recheck(model, base=base, environ=os.environ) for model in missing)
    return frozenset(model.entry.name for model in found if model.unavailable is None)


def setup(served: Served) -> Setup:
    """What a registry asks of the supervisor."""
    assert served.loaded.registry is not None
    manager = served.loaded.registry.manager
    budget = served.loaded.budget_bytes
    assert budget is not None
    standby = default_count() if manager.standby is None else manager.standby
    patience, slots = _patience(manager), manager.prefill_slots
    return Setup(
        served.router.models, _policy(manager, budget), patience, standby, slots, served.prompts
    )


def _policy(manager: Manager, budget_bytes: int) -> Policy:
    contention = manager.contention_policy
    derived: dict[str, float] = {}
    if manager.max_wait_s is not None:
        derived["max_wait_s"] = manager.max_wait_s
    if manager.min_resident_s is not None:
        derived["min_resident_s"] = manager.min_resident_s
    return Policy(
        budget_bytes=budget_bytes,
        strategy=contention.strategy,
        wait_timeout_s=contention.wait_timeout_s,
        preempt_after_s=contention.preempt_after_s,
        load_concurrency=manager.load_concurrency,
        max_engines=manager.max_engines,
        preempt_grace_s=manager.preempt_grace_s,
        drain_max_s=manager.drain_max_s,
        **derived,
    )


def _patience(manager: Manager) -> Patience:
    return Patience(manager.load_timeout_s, manager.hang_timeout_s, manager.first_step_timeout_s)
