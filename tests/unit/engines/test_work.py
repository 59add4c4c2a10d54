"""The work thread over a fake engine: boundaries, back-pressure, idling, the stop path."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from engines import wire, work
from engines.base import Emit, EngineError, Plain, Report
from engines.outbox import LIMIT_BYTES, Outbox

TIMEOUT_S = 20.0
LIMITS = wire.Limits(0, 0, 0, 0, 0)
DELTA = "x" * 64 * 1024


class FakeEngine(Plain):
    """Says one large delta per running call and step; `gate` holds every step up."""

    def __init__(self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit) -> None:
        self.limits = limits
        self.emit = emit
        self.calls: list[int] = []
        self.steps = 0
        self.gate = Event()
        self.gate.set()
        self.in_step = Event()
        self.idled = Event()
        self.pauses: list[float | None] = []
        self.rested = Event()
        self.closed = False
        self.forgets_on_cancel = False

    def load(self, report: Report) -> wire.Ready:
        report(wire.Loading("weights"))
        return wire.Ready(100, self.memory())

    def submit(self, request: wire.Request) -> None:
        self.calls.append(request.id)

    def answer(self, question: wire.Ask) -> wire.Answer:
        if isinstance(question, wire.Tokenize):
            raise EngineError("invalid_request", "no")
        if isinstance(question, wire.Detokenize):
            raise ZeroDivisionError
        return wire.Counted(question.id, 5)

    def cancel(self, call_id: int) -> None:
        if call_id in self.calls:
            self.calls.remove(call_id)
            if not self.forgets_on_cancel:
                self.emit(wire.Failed(call_id, "cancelled", "cancelled"))

    def step(self) -> None:
        self.in_step.set()
        assert self.gate.wait(TIMEOUT_S)
        self.steps += 1
        for call_id in self.calls:
            self.emit(wire.TextDelta(call_id, 0, DELTA))

    @property
    def busy(self) -> bool:
        return bool(self.calls)

    @property
    def running(self) -> int:
        return len(self.calls)

    @property
    def waiting(self) -> int:
        return 0

    def idle(self) -> None:
        self.idled.set()

    def background(self) -> float | None:
        """What is left of `pauses`, in turn."""
        if self.pauses:
            return self.pauses.pop(0)
        self.rested.set()
        return None

    def set_limits(self, limits: wire.Limits) -> None:
        self.limits = limits

    def memory(self) -> wire.Memory:
        return wire.Memory(kv_bytes=len(self.calls))

    def prompt_cache(self) -> wire.PromptCacheStats:
        return wire.PromptCacheStats(entries=3)

    def close(self) -> None:
        self.closed = True


class Setup:
    """A running work thread, its engine and the other end of its socket."""

    def __init__(self) -> None:
        self.ours, self.peer = socket.socketpair()
        self.ours.setblocking(False)
        self.peer.settimeout(TIMEOUT_S)
        self.ended = Event()
        self.built: list[FakeEngine] = []
        self.outbox = Outbox(self.ours, on_backlog=lambda: None, on_room=self._on_room)
        self.work = work.Work(self.outbox, self.ended.set, self._build)
        self.decoder = wire.events_decoder()
        self.seen: list[wire.FromEngine] = []

    def _on_room(self) -> None:
        self.work.wake()

    def _build(self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit) -> FakeEngine:
        self.built.append(FakeEngine(spec, limits, emit))
        return self.built[-1]

    @property
    def engine(self) -> FakeEngine:
        return self.built[0]

    def load(self) -> None:
        self.work.start()
        self.work.take(wire.Load(wire.EngineSpec("m", "scripted"), LIMITS))
        self.read_until(lambda: isinstance(self.seen[-1], wire.Ready))

    def generate(self, call_id: int) -> None:
        self.work.take(wire.Generate(call_id, []))

    def read_until(self, what: Callable[[], bool]) -> None:
        while not (self.seen and what()):
            self.outbox.drain()
            self.seen.extend(self.decoder.feed(self.peer.recv(2**20)))

    def failures(self) -> list[tuple[int, str]]:
        return [(event.id, event.code) for event in self.seen if isinstance(event, wire.Failed)]


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    for engine in made.built:
        engine.gate.set()
    made.work.stop()
    assert made.ended.wait(TIMEOUT_S)
    made.ours.close()
    made.peer.close()


def wait_until(what: Callable[[], bool]) -> None:
    pause = Event()
    for _ in range(int(TIMEOUT_S / 0.01)):
        if what():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come true in time")


def test_a_reader_that_does_not_read_stops_the_steps(setup: Setup) -> None:
    setup.load()
    setup.generate(1)
    wait_until(lambda: setup.work.progress.step.startswith("waiting for the gateway"))
    steps = setup.engine.steps
    assert LIMIT_BYTES / len(DELTA) < steps < 2 * LIMIT_BYTES / len(DELTA)
    setup.work.take(wire.Cancel(1, "enough"))
    wait_until(lambda: not setup.engine.calls)
    assert setup.engine.steps == steps
    setup.read_until(lambda: bool(setup.failures()))
    assert setup.failures() == [(1, "cancelled")]
    assert sum(isinstance(event, wire.TextDelta) for event in setup.seen) == steps


def test_steps_go_on_when_the_reader_is_back(setup: Setup) -> None:
    setup.load()
    setup.generate(1)
    wait_until(lambda: setup.outbox.full)
    steps = setup.engine.steps
    setup.read_until(lambda: setup.engine.steps > steps + 1)


def test_a_cancel_acts_before_the_next_step(setup: Setup) -> None:
    setup.load()
    setup.engine.gate.clear()
    setup.generate(1)
    assert setup.engine.in_step.wait(TIMEOUT_S)
    assert setup.work.progress.running == 1
    setup.work.take(wire.Cancel(1, "gone"))
    setup.engine.gate.set()
    setup.read_until(lambda: bool(setup.failures()))
    assert setup.engine.steps == 1


def test_stop_finishes_the_step_and_ends_every_call(setup: Setup) -> None:
    setup.load()
    setup.engine.gate.clear()
    setup.engine.forgets_on_cancel = True
    setup.generate(1)
    assert setup.engine.in_step.wait(TIMEOUT_S)
    setup.generate(2)
    setup.work.stop()
    setup.generate(3)
    setup.engine.gate.set()
    assert setup.ended.wait(TIMEOUT_S)
    setup.read_until(lambda: len(setup.failures()) == 3)
    assert setup.failures() == [(3, "overloaded"), (2, "overloaded"), (1, "cancelled")]
    assert setup.work.exit_code == 0
    assert setup.engine.closed


def test_too_many_requests_at_once_are_refused(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "INBOX_LIMIT", 2)
    setup.load()
    setup.engine.gate.clear()
    setup.generate(1)
    assert setup.engine.in_step.wait(TIMEOUT_S)
    for call_id in (2, 3, 4):
        setup.generate(call_id)
    setup.read_until(lambda: bool(setup.failures()))
    assert setup.failures() == [(4, "overloaded")]


def test_idle_is_told_once_and_limits_pass_through(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "IDLE_AFTER_S", 0.01)
    setup.load()
    assert setup.engine.idled.wait(TIMEOUT_S)
    limits = wire.Limits(1, 2, 3, 4, 5)
    setup.work.take(wire.SetLimits(limits))
    wait_until(lambda: setup.engine.limits == limits)
    assert setup.work.progress.prompt_cache.entries == 3


def test_what_could_wait_is_done_at_rest_until_there_is_no_more(setup: Setup) -> None:
    setup.load()
    assert setup.engine.rested.wait(TIMEOUT_S)
    setup.engine.rested.clear()
    setup.engine.pauses = [0, 0, 0.01, 0, 0]
    setup.work.wake()
    assert setup.engine.rested.wait(TIMEOUT_S)
    assert setup.engine.pauses == []
    assert not setup.engine.idled.is_set()


def test_calls_go_before_what_could_wait(setup: Setup) -> None:
    setup.load()
    assert setup.engine.rested.wait(TIMEOUT_S)
    setup.engine.gate.clear()
    setup.generate(1)
    assert setup.engine.in_step.wait(TIMEOUT_S)
    setup.engine.pauses = [0] * 3
    setup.engine.gate.set()
    setup.read_until(lambda: isinstance(setup.seen[-1], wire.TextDelta))
    assert setup.engine.pauses == [0] * 3
    setup.work.take(wire.Cancel(1, "enough"))
    setup.engine.rested.clear()
    wait_until(lambda: not setup.engine.pauses)


def test_a_stop_before_any_load_ends_it(setup: Setup) -> None:
    setup.work.start()
    setup.work.stop()
    assert setup.ended.wait(TIMEOUT_S)
    assert setup.work.exit_code == 0


QUESTIONS: tuple[wire.Ask, ...] = (
    wire.CountTokens(1, "", []),
    wire.Tokenize(2, "", "a"),
    wire.Detokenize(3, "", [1]),
)


def test_questions_are_answered_beside_running_calls(setup: Setup) -> None:
    setup.load()
    setup.generate(9)
    assert setup.engine.in_step.wait(TIMEOUT_S)
    for question in QUESTIONS:
        setup.work.take(question)
    setup.read_until(lambda: len(setup.failures()) == 2)
    assert wire.Counted(1, 5) in setup.seen
    assert setup.failures() == [(2, "invalid_request"), (3, "engine_error")]
    assert setup.engine.calls == [9]


def test_questions_are_answered_at_rest_and_refused_at_the_end(setup: Setup) -> None:
    setup.load()
    setup.work.take(QUESTIONS[0])
    setup.read_until(lambda: wire.Counted(1, 5) in setup.seen)
    setup.work.stop()
    assert setup.ended.wait(TIMEOUT_S)
    setup.work.take(QUESTIONS[1])
    setup.read_until(lambda: bool(setup.failures()))
    assert setup.failures() == [(2, "overloaded")]
