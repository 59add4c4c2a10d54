"""What the journal counts of loads that come after one another, told by a clock of the test's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engines import wire
from gateway import journal
from gateway.api.events import EventBus
from gateway.journal import STARTING, THRASH_S, Journal
from gateway.metrics import Metrics
from gateway.registry.find import Model
from gateway.registry.load import Loaded
from gateway.registry.remembered import Remembered
from gateway.registry.schema import Entry, Server
from gateway.residency import State, Stop, Transition
from gateway.router import Router
from gateway.rundir import RunDir
from gateway.served import Live, Served
from gateway.supervisor.engine import Exit
from gateway.supervisor.tasks import Tasks
from tests.harness.figures import samples

pytestmark = pytest.mark.anyio

LOADING = Transition("a", State.UNLOADED, State.LOADING, "a request")
READY = wire.Ready(1, wire.Memory())


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


class Written:
    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock, self.metrics = clock, Metrics()
        live = Live(Served(Loaded(), Router([]), Server()))
        run_dir, sizes = RunDir(folder / "run"), Remembered(folder / "sizes.json")
        self.journal = Journal(self.metrics, live, run_dir, sizes, Tasks(), EventBus())
        run_dir.close()

    def load(self, stages: Sequence[tuple[str, float]] = ()) -> None:
        """A whole load, with the seconds of each stage."""
        self.journal.moved(LOADING)
        for stage, seconds in stages:
            if stage != STARTING:
                self.journal.loading("a", wire.Loading(stage))
                self.journal.loading("a", wire.Loading(stage, 1, 2))
            self.clock.now += seconds
        self.journal.loaded(Model(entry=Entry(name="a", path="/x", kind="text")), READY, 1)

    def end(self, exit_: Exit) -> None:
        self.journal.exited("a", None, exit_)

    def found(self, *names: str) -> dict[str, float]:
        found = samples(self.metrics.page().decode())
        return {name: found[name] for name in found if name.startswith(names)}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    clock = Clock()
    monkeypatch.setattr(journal, "time", clock)
    return Written(tmp_path, clock)


@pytest.mark.parametrize(
    ("reason", "after_s", "thrash"),
    [
        ("evicted", 1, 1),
        ("preempted", 1, 1),
        ("pressure", 1, 1),
        ("overrun", THRASH_S, 1),
        ("evicted", THRASH_S + 1, 0),
        ("ttl", 1, 0),
        ("requested", 1, 0),
        ("reload", 1, 0),
    ],
)
async def test_a_model_that_comes_back_soon_after_it_had_to_leave_is_thrash(
    written: Written, reason: str, after_s: float, thrash: int
) -> None:
    written.load()
    written.journal.stopped(Stop("a", reason))  # type: ignore[arg-type]  # one of its literals
    written.end(Exit("asked", reason, True))
    written.clock.now += after_s
    written.load()
    written.load()
    expected = {"model_thrash_total{model=a}": thrash} if thrash else {}
    assert written.found("model_thrash", "engine_restarts") == expected


@pytest.mark.parametrize(
    ("how", "restarts"), [("crashed", 1), ("hung", 1), ("load_failed", 1), ("asked", 0)]
)
async def test_a_load_after_an_end_that_nobody_asked_for_is_a_restart(
    written: Written, how: str, restarts: int
) -> None:
    written.load()
    written.end(Exit(how, "why", True))  # type: ignore[arg-type]  # one of its literals
    written.load()
    written.load()
    expected = {"engine_restarts_total{model=a}": restarts} if restarts else {}
    assert written.found("engine_restarts") == expected


async def test_stages_share_the_time_of_a_load(written: Written) -> None:
    written.load([(STARTING, 2), ("reading weights", 5), ("first token", 1)])
    written.clock.now += 100
    written.journal.moved(LOADING)
    written.clock.now += 3
    written.end(Exit("load_failed", "why", False))
    name = "model_load_stage_seconds_total"
    assert written.found(name) == {
        f"{name}{{model=a,stage={STARTING}}}": 5,
        f"{name}{{model=a,stage=reading weights}}": 5,
        f"{name}{{model=a,stage=first token}}": 1,
    }


async def test_a_model_that_is_forgotten_begins_anew(written: Written) -> None:
    written.load()
    written.journal.stopped(Stop("a", "evicted"))
    written.end(Exit("crashed", "why", True))
    written.journal.forgotten("a")
    written.load()
    assert written.found("model_thrash", "engine_restarts") == {}


async def test_a_refused_reload_is_shown_until_a_good_one(written: Written) -> None:
    name = "last_reload_success"
    written.metrics.registry_read(good=True)
    good = written.found(name)
    assert good["last_reload_successful"] == 1
    written.journal.reloaded("refused", ["models: is broken"])
    assert written.found(name) == {**good, "last_reload_successful": 0}
    written.journal.reloaded("unchanged", [])
    assert written.found(name)["last_reload_successful"] == 1
