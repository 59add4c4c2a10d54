"""The engine of whole texts around a made-up model: its calls, its turns, its failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines import wire
from engines.base import EngineError, LoadError
from engines.vectors.batches import Cost, Row
from engines.vectors.engine import VectorEngine
from engines.vectors.tokens import Texts
from tests.unit.engines.test_text_limits import RecordingMlx

LIMITS = wire.Limits(2**30, 2**20, 2**20, 0, 2**20)


class Lengths:
    """A model whose result is the length of a row; an input is as many tokens as it has letters."""

    weights_bytes = 77
    dimensions = 1
    cost = Cost(1, 0)

    def __init__(self) -> None:
        self.texts = cast(Texts, SimpleNamespace(max_tokens=5000))
        self.batches: list[list[int]] = []
        self.fail = False

    def rows(self, request: wire.Request) -> list[Row]:
        if not isinstance(request, wire.Embed):
            raise EngineError("unsupported", "no")
        return [Row(i, [0] * len(text)) for i, text in enumerate(request.inputs)]

    def run(self, rows: Sequence[Row]) -> Sequence[Any]:
        self.batches.append([len(row.tokens) for row in rows])
        if self.fail:
            raise ValueError("a fault of the model")
        return [len(row.tokens) for row in rows]

    def outputs(self, request: wire.Request, results: Sequence[Any]) -> Iterable[wire.Output]:
        if results[0] == 13:
            raise EngineError("engine_error", "13 cannot be told")
        yield wire.Scores(request.id, [float(result) for result in results])


class Bench:
    def __init__(self, limits: wire.Limits = LIMITS) -> None:
        self.model = Lengths()
        self.events: list[Any] = []
        self.mlx = RecordingMlx(recommended=None)
        self.engine = VectorEngine(
            wire.EngineSpec("tested", "embedding"),
            limits,
            self.events.append,
            lambda spec, report: self.model,
            self.mlx,
        )
        self.ready = self.engine.load(lambda loading: None)

    def submit(self, call_id: int, *lengths: int) -> None:
        self.engine.submit(wire.Embed(call_id, ["x" * length for length in lengths]))

    def run(self) -> None:
        """Steps, granting every turn, until nothing is left to do."""
        for _ in range(1000):
            if not self.engine.busy:
                if not self.asked:
                    return
                self.engine.take_turn()
            self.engine.step()
        raise AssertionError("it never came to an end")

    def busy(self) -> bool:
        return self.engine.busy

    @property
    def asked(self) -> bool:
        """Whether a turn is wanted that has not come, or is not over."""
        wanted = sum(isinstance(event, wire.WantTurn) for event in self.events)
        return wanted > sum(isinstance(event, wire.TurnOver) for event in self.events)

    def of(self, call_id: int) -> list[Any]:
        return [event for event in self.events if getattr(event, "id", None) == call_id]

    def names(self, call_id: int) -> list[str]:
        return [type(event).__name__ for event in self.of(call_id)]


def test_a_call_has_its_events_in_order() -> None:
    bench = Bench()
    assert bench.ready.dimensions == 1
    assert bench.ready.memory.weights_bytes == 77
    bench.submit(1, 5, 200, 7)
    assert (bench.engine.busy, bench.engine.running, bench.engine.waiting) == (True, 0, 1)
    bench.run()
    assert bench.names(1) == ["Started", "PromptProgress", "Scores", "Finished"]
    assert bench.of(1)[0] == wire.Started(1, 212)
    assert bench.of(1)[1] == wire.PromptProgress(1, 200, 212)
    assert bench.of(1)[2] == wire.Scores(1, [5.0, 200.0, 7.0])
    assert bench.of(1)[3].usage == wire.Usage(212, 0)
    assert bench.model.batches == [[200], [7, 5]]
    assert not bench.busy()


def test_calls_take_turns_at_leading_a_batch() -> None:
    bench = Bench()
    bench.submit(1, *[300] * 4)
    bench.submit(2, 20)
    bench.engine.step()
    bench.engine.step()
    assert bench.model.batches == [[300], [20]]
    assert bench.names(2)[-1] == "Finished"


def test_a_cancelled_call_ends_between_two_batches() -> None:
    bench = Bench()
    bench.submit(1, 200, 10)
    bench.submit(2, 9)
    bench.engine.step()
    bench.engine.cancel(1)
    bench.engine.cancel(99)
    assert bench.of(1)[-1].code == "cancelled"
    bench.run()
    assert bench.model.batches == [[200], [9]]
    assert bench.names(2)[-1] == "Finished"
    assert len(bench.of(1)) == 3


def test_a_fault_of_the_model_ends_the_calls_of_that_batch_only() -> None:
    bench = Bench()
    bench.submit(1, 100)
    bench.submit(2, 100)
    bench.submit(3, 10)
    bench.model.fail = True
    bench.engine.step()
    bench.model.fail = False
    bench.run()
    for call_id in (1, 2):
        failed = bench.of(call_id)[-1]
        assert (failed.code, failed.message) == ("engine_error", "ValueError: a fault of the model")
    assert bench.names(3)[-1] == "Finished"


def test_what_cannot_be_told_fails_its_call() -> None:
    bench = Bench()
    bench.submit(1, 13)
    bench.run()
    assert bench.of(1)[-1] == wire.Failed(1, "engine_error", "13 cannot be told")
    assert not bench.busy()


def test_what_is_refused_leaves_nothing() -> None:
    bench = Bench()
    with pytest.raises(EngineError, match="no"):
        bench.engine.submit(wire.Rerank(1, "a", ["b"]))
    with pytest.raises(EngineError, match="there is no text"):
        bench.engine.submit(wire.Embed(1, []))
    assert not bench.busy()
    assert bench.events == []


def test_a_large_batch_waits_for_its_turn_and_small_calls_go_on() -> None:
    bench = Bench()
    bench.submit(1, 700)
    bench.engine.step()
    assert bench.events == [wire.WantTurn(700)]
    assert not bench.busy()
    bench.submit(2, 30)
    assert bench.busy()
    bench.engine.step()
    assert bench.names(2) == ["Started", "Scores", "Finished"]
    bench.engine.step()
    assert not bench.busy()
    bench.engine.take_turn()
    bench.engine.step()
    assert bench.names(1) == ["Started", "Scores", "Finished"]
    assert bench.events.count(wire.TurnOver()) == 1
    assert not bench.busy()


def test_a_turn_is_asked_for_again_after_each_batch() -> None:
    bench = Bench()
    bench.submit(1, 700, 690, 680)
    bench.run()
    assert len(bench.model.batches) == 3
    assert bench.events.count(wire.TurnOver()) == 3
    assert not bench.asked


def test_a_turn_is_not_kept_for_work_that_needs_none() -> None:
    bench = Bench()
    bench.submit(1, 600)
    bench.submit(2, 300, 100, 30)  # too different in length to go together
    bench.engine.step()
    assert bench.asked
    bench.engine.take_turn()
    bench.engine.cancel(1)
    bench.engine.step()
    assert bench.events.count(wire.TurnOver()) == 1
    assert bench.busy()
    bench.run()
    assert bench.model.batches == [[300], [100], [30]]


def test_a_turn_that_is_not_needed_any_more_is_given_back() -> None:
    bench = Bench()
    bench.submit(1, 700)
    bench.engine.step()
    bench.engine.cancel(1)
    assert bench.events.count(wire.TurnOver()) == 1
    bench.engine.take_turn()  # it was on its way already
    assert bench.events.count(wire.TurnOver()) == 1
    assert not bench.busy()


def test_a_text_that_needs_more_memory_than_a_batch_has_is_too_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Bench().ready.context_length == 5000
    assert not caplog.messages
    limits = wire.Limits(2**30, 2**20, 1000, 0, 2**20)
    assert Bench(limits).ready.context_length == 1000
    assert "hold no more than 1000: raise kv_memory_gb" in caplog.text


def test_limits_are_set_and_changed() -> None:
    bench = Bench()
    assert bench.ready.applied["wired_limit"] == LIMITS.weights_bytes + LIMITS.kv_bytes
    bench.engine.set_limits(wire.Limits(2**29, 2**20, 2**19, 0, 2**18))
    assert ("memory", 2**29) in bench.mlx.calls
    bench.engine.idle()
    bench.engine.close()
    assert bench.engine.memory().weights_bytes == 0
    assert not bench.busy()


def test_a_failed_load_leaves_the_thread_in_order() -> None:
    def fail(spec: wire.EngineSpec, report: object) -> Lengths:
        raise LoadError("no such model")

    mlx = RecordingMlx(recommended=None)
    engine = VectorEngine(wire.EngineSpec("a", "embedding"), LIMITS, lambda event: None, fail, mlx)
    with pytest.raises(LoadError, match="no such model"):
        engine.load(lambda loading: None)
    assert mlx.calls[-2:] == [("synchronize", None), ("clear", None)]
