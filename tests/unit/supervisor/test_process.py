"""What an engine process is started with, how its end reads, and who is ended at start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from gateway.supervisor.process import (
    STDERR_LINE_CHARS,
    STDERR_LINES,
    Process,
    end_survivors,
    engine_environment,
    record_of,
)


def test_an_engine_gets_our_environment_the_entrys_own_and_no_secret() -> None:
    base = {"PATH": "/bin", "MLX_GATEWAY_KEY": "secret", "LD_PRELOAD": "the operator's"}
    environment = engine_environment(base, {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "0"})
    assert environment == {
        "PATH": "/bin",
        "LD_PRELOAD": "the operator's",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "0",
    }
    assert engine_environment({}, {})["HF_HUB_OFFLINE"] == "1"


# --- how an end reads -----------------------------------------------------------------------------


async def ended(code: str) -> Process:
    """A Python process with this program, after its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    watched = Process(process)
    await watched.exited
    return watched


ENDS = [
    ("import sys; sys.exit(3)", "exited with code 3"),
    ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
    ("import sys; sys.exit('out of\\nmemory\\n\\n')", "exited with code 1: memory"),
    ("import sys; sys.stderr.write('no newline'); sys.exit(2)", "exited with code 2: no newline"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "description"), ENDS)
async def test_an_end_is_described_with_the_last_words(code: str, description: str) -> None:
    assert (await ended(code)).describe_exit() == description


@pytest.mark.anyio
async def test_of_endless_words_only_the_last_are_kept() -> None:
    process = await ended(
        "import sys; sys.stderr.write('x' * 10**6 + '\\n')\n"
        "for n in range(10**4): print(n, file=sys.stderr)"
    )
    assert list(process.last_lines) == [str(n) for n in range(10**4 - STDERR_LINES, 10**4)]
    process = await ended("import sys; sys.stderr.write('x' * 10**6)")
    assert [len(line) for line in process.last_lines] == [STDERR_LINE_CHARS]


@pytest.mark.anyio
async def test_a_kill_takes_the_whole_session_and_may_come_late() -> None:
    code = (
        "import subprocess; subprocess.Popen(['sleep', '600']); print('ready', flush=True); input()"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    watched = Process(process)
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
        watched.kill()
        assert await watched.exited == -9
        assert await process.stdout.read() == b""  # the child had it too, and is gone
    watched.kill()
    watched.terminate()
    assert watched.describe_exit() == "killed by SIGKILL"


@pytest.mark.anyio
async def test_a_kill_does_not_lose_the_exit_code() -> None:
    for _ in range(20):
        started = await asyncio.create_subprocess_exec(
            *("sleep", "600"), stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
        process = Process(started)
        process.kill()
        async with asyncio.timeout(30):
            assert await process.exited == -9


# --- survivors ------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_survivor_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    record = record_of(sleeper.pid)
    assert record is not None
    assert end_survivors([record, (2**22 - 1, 0.0)]) == [sleeper.pid]
    assert sleeper.wait(30) == -9


def test_somebody_else_with_the_pid_is_spared(sleeper: subprocess.Popen[bytes]) -> None:
    pid, created = record_of(sleeper.pid) or (0, 0.0)
    assert end_survivors([(pid, created - 5), (pid, created + 5)]) == []
    assert sleeper.poll() is None


def test_who_has_ended_and_is_only_not_reaped_is_not_waited_for(
    sleeper: subprocess.Popen[bytes],
) -> None:
    record = record_of(sleeper.pid)
    assert record is not None
    sleeper.kill()
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_ZOMBIE:
        assert sleeper.returncode is None
    assert end_survivors([record]) == []


def test_there_is_no_record_of_nobody() -> None:
    assert record_of(2**22 - 1) is None


def test_there_is_no_record_without_a_descriptor_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pid: int) -> psutil.Process:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(psutil, "Process", fails)
    assert record_of(1) is None
