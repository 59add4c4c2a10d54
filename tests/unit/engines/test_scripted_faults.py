"""How the scripted engine loads and fails, as its options say."""

from __future__ import annotations

from typing import Any

import pytest

from engines import wire
from engines.base import LoadError
from engines.script import GIB
from tests.unit.engines.scripted_bench import LIMITS, Bench

# --- loading --------------------------------------------------------------------------------------


def load(bench: Bench) -> list[wire.Loading]:
    reports: list[wire.Loading] = []
    bench.engine.load(reports.append)
    return reports


def test_loading_reports_bytes_over_the_time_it_takes() -> None:
    bench = Bench(size_gb=1, load_s=0.4)
    reports = load(bench)
    assert [report.done_bytes / GIB for report in reports] == [0, 0, 0.25, 0.5, 0.75, 1]
    assert bench.machine.time == pytest.approx(100.4)


def test_ready_names_context_and_memory() -> None:
    ready = Bench(size_gb=1, context_length=77).engine.load(lambda loading: None)
    assert (ready.context_length, ready.memory) == (77, wire.Memory(weights_bytes=GIB))
    assert (ready.voices, ready.dimensions) == (("alto", "bass"), 384)


@pytest.mark.parametrize(
    ("fail_loads", "number", "done", "fails"),
    [
        (0, 0, [], False),
        (2, 1, [], True),
        (2, 2, [], False),
        (["error", "ok"], 0, [], True),
        (["error", "ok"], 1, [], False),
        (["error", "ok"], 2, [], False),
        (["hang"], 0, ["hang"], False),
        ([{"exit": 139}], 0, ["exit 139"], False),
    ],
)
def test_failing_loads(fail_loads: object, number: int, done: list[str], fails: bool) -> None:
    bench = Bench(fail_loads=fail_loads, load_number=number)
    if fails:
        with pytest.raises(LoadError, match=f"load number {number}"):
            load(bench)
    else:
        load(bench)
    assert bench.machine.done == done


def test_a_stall_comes_at_its_fraction() -> None:
    bench = Bench(size_gb=1, load_s=1, load_stall_at=0.5)
    reported: list[float] = []

    def report(loading: wire.Loading) -> None:
        if not bench.machine.done:
            reported.append(loading.done_bytes / GIB)

    bench.engine.load(report)
    assert reported[-1] == 0.5
    assert bench.machine.done[0] == "hang"


@pytest.mark.parametrize(("flood", "lines"), [(True, 10_000), (False, 0), (7, 7)])
def test_a_flood_on_stderr(flood: object, lines: int) -> None:
    bench = Bench(stderr_flood=flood)
    load(bench)
    assert "".join(bench.machine.stderr).count("\n") == lines


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"size_gb": -1}, "size_gb"),
        ({"size_gb": "2"}, "size_gb"),
        ({"tokens_per_s": 0}, "tokens_per_s"),
        ({"load_stall_at": 1.5}, "load_stall_at"),
        ({"fail_loads": ["maybe"]}, "fail_loads"),
        ({"fail_loads": [{"exit": 300}]}, "fail_loads"),
        ({"exit_after": 1.5}, "exit_after"),
        ({"deltas": [1]}, "deltas"),
        ({"tok_per_s": 1}, "tok_per_s"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(LoadError, match=key):
        Bench(**options)


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "done"),
    [("exit_after", "exit 1"), ("hang_after", "hang"), ("freeze_after", "freeze")],
)
def test_a_fault_strikes_after_its_deltas(option: str, done: str) -> None:
    bench = Bench(deltas=10, **{option: 3})
    bench.submit(call_id=1)
    bench.submit(call_id=2)
    said = 0
    while not bench.machine.done:
        assert bench.engine.busy
        said = len(bench.texts(1)) + len(bench.texts(2))
        bench.engine.step()
    assert said == 3
    assert bench.machine.done == [done]


def test_a_fault_comes_before_the_end_of_its_call() -> None:
    bench = Bench(deltas=2, exit_after=2)
    bench.submit()
    bench.engine.step()
    bench.engine.step()
    assert bench.names() == ["Started", "TextDelta", "TextDelta"]
    bench.engine.step()
    assert bench.machine.done == ["exit 1"]


def test_a_fault_after_no_delta_waits_for_a_call() -> None:
    bench = Bench(exit_after=0)
    assert not bench.engine.busy
    bench.submit()
    bench.engine.step()
    assert bench.machine.done == ["exit 1"]


@pytest.mark.parametrize(("given", "code"), [(True, 1), (139, 139), (0, 0)])
def test_a_script_can_exit(given: object, code: int) -> None:
    bench = Bench()
    bench.script("a", {"exit": given})
    while not bench.machine.done:
        bench.engine.step()
    assert bench.machine.done == [f"exit {code}"]
    assert bench.texts() == ["a"]


def test_close_drops_what_runs() -> None:
    bench = Bench()
    bench.submit()
    bench.engine.idle()
    bench.engine.set_limits(LIMITS)
    bench.engine.close()
    assert not bench.engine.busy
    assert bench.engine.waiting == 0
    assert bench.engine.prompt_cache() == wire.PromptCacheStats()
