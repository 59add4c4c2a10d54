"""The worker as a real process, seen from the gateway's end of its socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from engines import process, wire
from tests.contract.workers import GIB, LIMITS, ROOT, TIMEOUT_S, Worker, script, wait_until


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def one(*args: Any, **kwargs: Any) -> Worker:
        started.append(Worker(*args, **kwargs))
        return started[-1]

    yield one
    for worker in started:
        worker.stop()


Start = Callable[..., Worker]


LOAD = wire.encode(wire.Load(wire.EngineSpec("model", "scripted"), LIMITS))
SLOW_CALL = wire.encode(wire.Generate(1, [{"role": "user", "content": script({"sleep": 60})}]))


# --- the ordinary life ----------------------------------------------------------------------------


def test_a_worker_says_hello_loads_and_answers(start: Start) -> None:
    worker = start().load(size_gb=3)
    messages = worker.messages()
    assert next(messages) == wire.Hello(wire.WIRE_VERSION, "a token")
    assert worker.until(wire.Loading).stage == "starting"
    ready = worker.until(wire.Ready)
    assert ready.memory.weights_bytes == 3 * GIB
    worker.generate(7, '{"script": ["Hello", " world"], "finish": "stop"}')
    events = worker.call(7)
    assert events[:-1] == [
        wire.Started(7, 6),
        wire.TextDelta(7, 0, "Hello"),
        wire.TextDelta(7, 0, " world"),
        wire.ChoiceFinished(7, 0, "stop"),
    ]
    assert isinstance(events[-1], wire.Finished)


def test_a_heartbeat_tells_steps_and_memory(start: Start) -> None:
    worker = start().ready(size_gb=1)
    beat = worker.until(wire.Heartbeat, lambda beat: beat.step == "idle")
    assert beat.steps >= 1
    assert beat.memory.weights_bytes == GIB
    assert 2**20 < beat.memory.process_bytes < GIB
    worker.generate(1, script({"sleep": 60}))
    busy = worker.until(wire.Heartbeat, lambda beat: beat.running == 1)
    later = worker.until(wire.Heartbeat)
    assert later.steps > busy.steps


def test_many_calls_share_one_connection(start: Start) -> None:
    worker = start().ready(deltas=5)
    calls = range(1, 51)
    worker.send(*(wire.Generate(n, [{"role": "user", "content": "hi"}]) for n in calls))
    texts: dict[int, str] = dict.fromkeys(calls, "")
    for _ in calls:
        for message in worker.messages():
            if isinstance(message, wire.TextDelta):
                texts[message.id] += message.text
            if isinstance(message, wire.Finished):
                break
    assert set(texts.values()) == {"word1 word2 word3 word4 word5 "}


def test_cancel_ends_a_call_in_the_middle(start: Start) -> None:
    worker = start().ready(deltas=10_000, tokens_per_s=50)
    worker.generate(1)
    worker.until(wire.TextDelta)
    worker.send(wire.Cancel(1, "client_gone"), wire.Cancel(99, "never there"))
    end = worker.call(1)[-1]
    assert isinstance(end, wire.Failed)
    assert end.code == "cancelled"
    worker.generate(2, script("still here"))
    assert isinstance(worker.call(2)[-1], wire.Finished)


def test_a_refused_call_leaves_the_others(start: Start) -> None:
    worker = start().ready()
    worker.generate(1, script({"no": "such step"}))
    end = worker.call(1)[-1]
    assert isinstance(end, wire.Failed)
    assert end.code == "invalid_request"
    worker.send(wire.SetLimits(LIMITS))
    worker.generate(2, script("fine"))
    assert isinstance(worker.call(2)[-1], wire.Finished)


# --- stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["Shutdown", "SIGTERM"])
def test_a_stop_ends_calls_in_order_and_exits_0(start: Start, how: str) -> None:
    worker = start().ready(deltas=10_000, tokens_per_s=50)
    worker.generate(1)
    worker.until(wire.TextDelta)
    if how == "Shutdown":
        worker.send(wire.Shutdown(TIMEOUT_S))
    else:
        worker.process.terminate()
    end = worker.call(1)[-1]
    assert isinstance(end, wire.Failed)
    assert end.code == "cancelled"
    assert worker.wait() == process.EXIT_STOPPED


def test_what_comes_after_a_shutdown_is_refused(start: Start) -> None:
    worker = start().ready(hang_after=1)
    worker.generate(1)
    worker.until(wire.TextDelta)
    worker.send(wire.Shutdown(TIMEOUT_S))
    worker.generate(2)
    end = worker.call(2)[-1]
    assert isinstance(end, wire.Failed)
    assert (end.code, end.retryable) == ("overloaded", True)


def test_a_shutdown_between_two_load_stages_is_heeded(start: Start) -> None:
    worker = start().load(load_s=600)
    worker.until(wire.Loading, lambda loading: loading.stage == "weights")
    worker.send(wire.Shutdown(TIMEOUT_S))
    assert worker.wait() == process.EXIT_STOPPED


def test_a_spare_worker_stops_without_ever_loading(start: Start) -> None:
    worker = start()
    worker.until(wire.Hello)
    worker.send(wire.Shutdown(TIMEOUT_S))
    assert worker.wait() == process.EXIT_STOPPED


def test_a_stuck_worker_is_ended_when_its_grace_is_over(start: Start) -> None:
    worker = start(stderr=subprocess.PIPE).ready(hang_after=1)
    worker.generate(1)
    worker.until_stuck()
    worker.send(wire.Shutdown(0.2))
    assert worker.wait() == process.EXIT_FORCED
    assert "stopped in the middle of: step" in worker.stderr()


def test_a_worker_ends_when_the_gateway_is_gone(start: Start) -> None:
    worker = start().ready(deltas=100_000, tokens_per_s=50)
    worker.generate(1)
    worker.until(wire.TextDelta)
    worker.sock.close()
    assert worker.wait() == process.EXIT_STOPPED


@pytest.mark.parametrize("ignore_term", [False, True])
def test_a_stuck_worker_ends_too_when_the_gateway_is_gone(start: Start, ignore_term: bool) -> None:
    worker = start().ready(hang_after=1, ignore_term=ignore_term)
    worker.generate(1)
    worker.until_stuck()
    worker.sock.close()
    assert worker.wait() == process.EXIT_FORCED


def test_ignore_term_ignores_everything_but_the_end_of_the_socket(start: Start) -> None:
    worker = start().ready(ignore_term=True)
    worker.process.terminate()
    worker.send(wire.Shutdown(0))
    worker.generate(1, script("not impressed"))
    assert isinstance(worker.call(1)[-1], wire.Finished)
    worker.sock.close()
    assert worker.wait() == process.EXIT_STOPPED


def test_sigint_is_left_to_the_gateway(start: Start) -> None:
    worker = start().ready()
    worker.process.send_signal(signal.SIGINT)
    worker.generate(1)
    assert isinstance(worker.call(1)[-1], wire.Finished)


def test_a_killed_parent_takes_a_stuck_worker_with_it() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    start_worker = (
        "import subprocess, sys;"
        f"subprocess.Popen([sys.executable, '-m', 'engines.worker'], pass_fds=[{theirs.fileno()}])"
        ".wait()"
    )
    environment = {
        **os.environ,
        wire.FD_VARIABLE: str(theirs.fileno()),
        wire.TOKEN_VARIABLE: "t",
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", start_worker],
        cwd=ROOT,
        env=environment,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    with ours:
        spec = wire.EngineSpec("model", "scripted", scripted={"fail_loads": ["hang"]})
        ours.sendall(wire.encode(wire.Load(spec, LIMITS)))
        decoder = wire.events_decoder()
        seen: list[wire.FromEngine] = []
        while not any(isinstance(message, wire.Loading) for message in seen):
            seen.extend(decoder.feed(ours.recv(65536)))
        (worker,) = psutil.Process(parent.pid).children()
        parent.kill()
        parent.wait(TIMEOUT_S)
        if sys.platform != "linux":
            ours.close()  # there the end of file is the only sign; on Linux there is none here
        wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


# --- trouble --------------------------------------------------------------------------------------


def test_a_stuck_model_still_has_heartbeats(start: Start) -> None:
    worker = start().ready(hang_after=2)
    worker.generate(1)
    worker.until(wire.TextDelta)
    worker.until(wire.TextDelta)
    first, *others = (worker.until(wire.Heartbeat, lambda beat: beat.running == 1) for _ in "123")
    assert {beat.steps for beat in others} == {first.steps}
    assert first.step == "step"


def test_a_full_stderr_stops_neither_heartbeats_nor_the_end(start: Start) -> None:
    worker = start(stderr=subprocess.PIPE).load(stderr_flood=True)
    worker.until(wire.Loading)
    steps = [worker.until(wire.Heartbeat).steps for _ in "123"]
    assert steps[1] == steps[2]
    worker.send(wire.Shutdown(0.1))
    assert worker.wait() == process.EXIT_FORCED


def test_a_frozen_worker_is_stopped_whole(start: Start) -> None:
    worker = start().ready(freeze_after=1)
    worker.generate(1)
    worker.until(wire.TextDelta)
    seen = psutil.Process(worker.process.pid)
    wait_until(lambda: seen.status() == psutil.STATUS_STOPPED)


@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        (script("said", {"exit": True}), {}, 1),
        (script("said", {"exit": 139}), {}, 139),
        ("hi", {"deltas": "said and more", "exit_after": 1}, 1),
    ],
)
def test_a_crash_keeps_what_was_said_before(
    start: Start, content: str, options: dict[str, Any], code: int
) -> None:
    worker = start().ready(**options)
    worker.generate(1, content)
    texts = [event.text for event in worker.messages() if isinstance(event, wire.TextDelta)]
    assert [text.strip() for text in texts] == ["said"]
    assert worker.wait() == code


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sise_gb": 1}, "sise_gb"),
        ({"fail_loads": 1}, "load number 0"),
    ],
)
def test_a_failed_load_says_why_and_ends(
    start: Start, options: dict[str, Any], message: str
) -> None:
    worker = start(stderr=subprocess.PIPE).load(**options)
    assert message in worker.until(wire.LoadFailed).message
    assert worker.wait() == process.EXIT_LOAD_FAILED
    assert message in worker.stderr()


def test_a_load_can_end_the_process(start: Start) -> None:
    worker = start().load(fail_loads=[{"exit": 139}])
    assert worker.wait() == 139


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (b"\xff\xff\xff\xff", "over the limit"),
        (b"\x01\x00\x00\x00\xc1", "no message"),
        (SLOW_CALL, "Generate came before Load"),
        (LOAD + LOAD, "a second Load"),
        (LOAD + SLOW_CALL + SLOW_CALL, "call id 1 is in use"),
    ],
)
def test_a_broken_protocol_ends_the_worker(start: Start, frames: bytes, reason: str) -> None:
    worker = start(stderr=subprocess.PIPE)
    worker.sock.sendall(frames)
    assert worker.wait() == process.EXIT_BUG
    assert reason in worker.stderr()


def test_a_scripted_worker_imports_no_model_library() -> None:
    program = (
        "import sys, engines.worker, engines.scripted;"
        "sys.exit(bool({'mlx', 'mlx_lm', 'transformers', 'numpy', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0


def test_a_worker_leads_its_own_session() -> None:
    ours, theirs = socket.socketpair()
    environment = {
        **os.environ,
        wire.FD_VARIABLE: str(theirs.fileno()),
        wire.TOKEN_VARIABLE: "t",
    }
    command = [sys.executable, "-m", "engines.worker"]
    with (
        ours,
        subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()]) as worker,
    ):
        theirs.close()
        ours.settimeout(TIMEOUT_S)
        assert ours.recv(100)
        assert os.getsid(worker.pid) == worker.pid
        ours.close()


def test_without_a_gateway_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engines.worker"],
        cwd=ROOT,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == process.EXIT_USAGE
    assert b"not by hand" in done.stderr


# --- an engine that breaks the contract -----------------------------------------------------------

FAULTY = "tests.contract.faulty_worker"


def test_an_exception_in_a_step_ends_the_worker_with_its_traceback(start: Start) -> None:
    worker = start(FAULTY, stderr=subprocess.PIPE).ready()
    worker.generate(1, "raise in step")
    assert worker.wait() == process.EXIT_BUG
    assert "RuntimeError: shapes do not match" in worker.stderr()


def test_a_stuck_worker_ends_by_itself_after_sigterm(start: Start) -> None:
    worker = start(FAULTY, stderr=subprocess.DEVNULL).ready(hang_after=1)
    worker.generate(1)
    worker.until_stuck()
    worker.process.terminate()
    assert worker.wait() == process.EXIT_FORCED


def test_an_exception_in_submit_ends_its_call_only(start: Start) -> None:
    worker = start(FAULTY, stderr=subprocess.DEVNULL).ready(deltas=3)
    worker.generate(1, "raise in submit")
    end = worker.call(1)[-1]
    assert isinstance(end, wire.Failed)
    assert (end.code, end.message) == ("engine_error", "KeyError: 'no such template'")
    worker.generate(1)
    assert isinstance(worker.call(1)[-1], wire.Finished)


def test_an_exception_in_load_is_a_failed_load(start: Start) -> None:
    worker = start(FAULTY, stderr=subprocess.DEVNULL).load("raise in load")
    assert worker.until(wire.LoadFailed).message == "RuntimeError: no such tensor"
    assert worker.wait() == process.EXIT_LOAD_FAILED


def test_a_grandchild_inherits_neither_socket_nor_secrets(start: Start) -> None:
    worker = start(FAULTY).load("grandchild")
    grandchild = psutil.Process(int(worker.until(wire.Loading).stage))
    try:
        private = {wire.FD_VARIABLE, wire.TOKEN_VARIABLE, "LD_PRELOAD"}
        assert not private & grandchild.environ().keys()
        worker.process.kill()
        assert worker.wait() == -signal.SIGKILL
        assert not any(isinstance(message, wire.Failed) for message in worker.messages())
        assert worker.sock.recv(1) == b""
        assert grandchild.is_running()
    finally:
        grandchild.kill()


# --- questions ------------------------------------------------------------------------------------


def test_questions_are_answered_beside_a_call(start: Start) -> None:
    worker = start().ready(deltas=10_000, tokens_per_s=50)
    worker.generate(1)
    worker.until(wire.TextDelta)
    worker.send(wire.CountTokens(2, "", [{"role": "user", "content": "a b c"}]))
    assert worker.until(wire.Counted) == wire.Counted(2, 3)
    worker.send(wire.Tokenize(3, "", "some words"))
    cut = worker.until(wire.Tokenized)
    worker.send(wire.Detokenize(4, "", cut.token_ids))
    assert worker.until(wire.Detokenized).text == "some words"
    worker.send(wire.Detokenize(5, "", [1]))
    failed = worker.until(wire.Failed)
    assert (failed.id, failed.code) == (5, "invalid_request")


def test_an_answer_too_large_for_a_frame_is_a_failure(start: Start) -> None:
    worker = start().ready()
    worker.send(wire.Tokenize(1, "", "a " * 1_000_000))
    failed = worker.until(wire.Failed)
    assert failed.code == "invalid_request"
    assert "the limit is" in failed.message
    worker.generate(2)
    assert isinstance(worker.call(2)[-1], wire.Finished)


def test_a_tokenizer_worker_counts_without_a_model(start: Start) -> None:
    worker = start()
    worker.send(wire.Load(wire.EngineSpec("tokenizers", "tokenizer"), LIMITS))
    worker.until(wire.Ready)
    folder = str(ROOT / "tests" / "fixtures" / "models" / "scripted-hermes")
    messages = [{"role": "user", "content": "Say hello."}]
    worker.send(wire.CountTokens(1, folder, messages))
    assert worker.until(wire.Counted).tokens > 1
    worker.send(wire.CountTokens(2, "", messages))
    assert worker.until(wire.Counted) == wire.Counted(2, 2)
    worker.send(wire.Shutdown(TIMEOUT_S))
    assert worker.wait() == process.EXIT_STOPPED
