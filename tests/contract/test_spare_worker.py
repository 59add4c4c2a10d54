"""A worker that is told what it will serve before it is told which model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import process, wire
from engines.work import IMPORTED
from tests.contract.workers import GIB, LIMITS, ROOT, TIMEOUT_S, Worker

NANO = Path(__file__).parents[1] / "fixtures" / "models" / "random-nano"

Start = Callable[[str], Worker]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[Worker] = []

    def one(imports: str) -> Worker:
        monkeypatch.setenv(wire.IMPORT_VARIABLE, imports)
        started.append(Worker(stderr=subprocess.PIPE))
        return started[-1]

    yield one
    for worker in started:
        worker.stop()


def imported(worker: Worker) -> Worker:
    messages = (m for m in worker.messages() if not isinstance(m, wire.Heartbeat))
    assert isinstance(next(messages), wire.Hello)
    assert next(messages) == wire.Loading(IMPORTED)
    return worker


@pytest.mark.parametrize("imports", ["scripted", "something else"])
def test_it_says_when_its_imports_are_done_and_waits_for_any_model(
    start: Start, imports: str
) -> None:
    worker = imported(start(imports))
    beat = worker.until(wire.Heartbeat, lambda beat: beat.step == "waiting for a model")
    assert beat.memory.weights_bytes == 0
    assert worker.load(size_gb=2).until(wire.Ready).memory.weights_bytes == 2 * GIB
    worker.generate(1)
    assert isinstance(worker.call(1)[-1], wire.Finished)


def test_a_load_that_comes_early_waits_for_the_imports(start: Start) -> None:
    worker = start("scripted").load()
    assert worker.until(wire.Loading).stage == IMPORTED
    worker.until(wire.Ready)


def test_a_text_model_is_loaded_by_a_spare_for_text(start: Start) -> None:
    worker = imported(start("text"))
    limits = wire.Limits(2**30, 2**28, 2**28, 0, 2**26)
    worker.send(wire.Load(wire.EngineSpec("nano", "text", path=str(NANO)), limits))
    assert worker.until(wire.Ready).memory.weights_bytes > 0
    worker.send(wire.Shutdown(TIMEOUT_S))
    assert worker.wait() == process.EXIT_STOPPED


@pytest.mark.parametrize("how", ["Shutdown", "SIGTERM", "end of file"])
def test_a_stop_in_the_middle_of_the_imports_ends_it_at_once(start: Start, how: str) -> None:
    worker = start("text")
    worker.until(wire.Hello)
    if how == "Shutdown":
        worker.send(wire.Shutdown(10 * TIMEOUT_S))
    elif how == "SIGTERM":
        worker.process.terminate()
    else:
        worker.sock.close()
    assert worker.wait() == process.EXIT_STOPPED


def test_imports_that_fail_end_it_with_their_traceback(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx_lm").mkdir()
    (tmp_path / "mlx_lm" / "__init__.py").write_text("raise ImportError('a broken library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = start("text")
    assert worker.wait() == process.EXIT_BUG
    assert "ImportError: a broken library" in worker.stderr()


def test_the_limits_of_a_load_are_those_of_the_load(start: Start) -> None:
    worker = imported(start("scripted"))
    worker.send(wire.SetLimits(LIMITS))
    assert worker.wait() == process.EXIT_BUG
    assert "SetLimits came before Load" in worker.stderr()


def test_nothing_heavy_is_imported_before_hello() -> None:
    heavy = {"mlx", "numpy", "transformers", "asyncio", "json", "logging", "engines.scripted"}
    code = "import sys, engines.worker; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert not heavy & set(output.split())
