"""Starting, ending and reaping one engine process. Knows nothing of models or calls.

What a process says on stderr costs a bounded amount of memory (the last `STDERR_BYTES`) and of CPU
(in the long run it is read at `STDERR_BYTES_PER_S`; a process that writes more has to wait).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import wire
from gateway.supervisor.link import Link, Receiver

if TYPE_CHECKING:
    import psutil

log = logging.getLogger("gateway.engine")

STDERR_BYTES = 64 * 1024
STDERR_LINES = 200
STDERR_LINE_CHARS = 2000
STDERR_DRAIN_S = 1.0
STDERR_CHUNK_BYTES = 2**16
STDERR_BYTES_PER_S = 2**22
STDERR_BURST_S = 2.0
DUMP_WAIT_S = 0.5
DUMP_QUIET_S = 0.1
"""A dump of all stacks has arrived when stderr has been silent for so long."""

KILL_WAIT_S = 30.0
SURVIVOR_POLL_S = 0.02

OPENBLAS_PATHS = (
    "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
    "/usr/lib/aarch64-linux-gnu/openblas-pthread/libopenblas.so.0",
    "/usr/lib64/libopenblasp.so.0",
)


def engine_environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of an engine: ours, the entry's own, no secrets of ours, a fast BLAS.

    MLX's CPU build carries a slow reference BLAS; preloading OpenBLAS with one thread makes
    float32 about ten times faster. Nothing is preloaded where the operator preloads something.
    """
    environment = {key: value for key, value in base.items() if key != "MLX_GATEWAY_KEY"}
    if sys.platform == "linux" and "LD_PRELOAD" not in environment:
        if (library := openblas()) is not None:
            environment["LD_PRELOAD"] = library
            environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    environment["HF_HUB_OFFLINE"] = "1"  # serving never downloads
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(extra)
    return environment


def openblas() -> str | None:
    """The library that engines get preloaded, None where it is not installed."""
    return next((path for path in OPENBLAS_PATHS if Path(path).exists()), None)


def interpreter() -> list[str]:
    """Python as `-m engines.worker` is run with.

    `-m` looks in the working directory first, where an operator may have a folder of any name;
    `-P` keeps it from that. A gateway that is run from its own source folder finds its engines
    there and nowhere else.
    """
    try:
        at_home = Path(wire.__file__).parents[1] == Path.cwd()
    except OSError:  # the working directory has been deleted
        at_home = False
    return [sys.executable] if at_home else [sys.executable, "-P"]


class Process:
    """A running engine process: its pid, its last words and its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._process = process
        self._tail = b""
        self._heard = asyncio.Event()
        self._hear: Callable[[bytes], None] = lambda chunk: None
        self._exit = asyncio.ensure_future(self._until_exit())

    @classmethod
    async def spawn(
        cls, child_end: socket.socket, token: str, environment: Mapping[str, str]
    ) -> Process:
        """Starts `python -m engines.worker` with `child_end` as its wire. Raises `OSError`."""
        fd = child_end.fileno()
        process = await asyncio.create_subprocess_exec(
            *interpreter(),
            "-m",
            "engines.worker",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(fd,),
            start_new_session=True,
            env={**environment, wire.FD_VARIABLE: str(fd), wire.TOKEN_VARIABLE: token},
        )
        return cls(process)

    @property
    def exited(self) -> asyncio.Future[int]:
        """Done once the process is reaped; its result is the return code, negative for a signal."""
        return self._exit

    @property
    def stderr_bytes(self) -> int:
        """What is kept of its stderr."""
        return len(self._tail)

    @property
    def last_lines(self) -> list[str]:
        """The end of what it has said on stderr, each line cut to a bearable length."""
        lines = self._tail.decode("utf-8", "replace").splitlines()
        return [line[-STDERR_LINE_CHARS:] for line in lines[-STDERR_LINES:]]

    async def dump_stacks(self) -> None:
        """Has a stuck process write the stack of every thread to stderr, within a bound."""
        self._signal(signal.SIGUSR1)
        deadline = asyncio.get_running_loop().time() + DUMP_WAIT_S
        heard = True
        wait = DUMP_WAIT_S
        while heard and wait > 0:
            self._heard.clear()
            heard = await within(self._heard.wait(), wait)
            wait = min(DUMP_QUIET_S, deadline - asyncio.get_running_loop().time())

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process's whole session: an engine may have children of its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._signal(signal.SIGKILL)

    def describe_exit(self) -> str:
        """How the process ended and its last line on stderr, for people."""
        if not self._exit.done():
            return "not reaped after SIGKILL"
        code = self._exit.result()
        if code < 0:
            try:
                how = f"killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"killed by signal {-code}"
        else:
            how = f"exited with code {code}"
        last = next((line for line in reversed(self.last_lines) if line.strip()), "")
        return f"{how}: {last.strip()[:300]}" if last else how

    def _signal(self, number: signal.Signals) -> None:
        # `Popen.send_signal` would poll, and take the exit code from asyncio, which then says 255.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _until_exit(self) -> int:
        assert self._process.stderr is not None
        reader = asyncio.ensure_future(self._read_stderr(self._process.stderr))
        try:
            code = await self._process.wait()
            # A grandchild may hold the pipe open, so its end is not waited for without bound.
            await asyncio.wait([reader], timeout=STDERR_DRAIN_S)
        finally:
            reader.cancel()
        return code

    def listen(self, hear: Callable[[bytes], None]) -> None:
        """From now on `hear` gets what the process says; it must not raise."""
        self._hear = hear

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        paid_until = 0.0
        while chunk := await stream.read(STDERR_CHUNK_BYTES):
            self._tail = (self._tail + chunk)[-STDERR_BYTES:]
            self._heard.set()
            self._hear(chunk)
            now = loop.time()
            paid_until = max(paid_until, now - STDERR_BURST_S) + len(chunk) / STDERR_BYTES_PER_S
            if paid_until > now:
                await asyncio.sleep(paid_until - now)


@dataclass(frozen=True, slots=True)
class Started:
    """A process and the gateway's end of its socket; who holds it must `finish` it."""

    process: Process
    link: Link
    token: str
    """What its `Hello` has to repeat."""


async def start(receiver: Receiver, environment: Mapping[str, str]) -> Started:
    """Starts an engine process whose messages go to `receiver`. Raises `OSError`."""
    token = secrets.token_hex(16)
    ours, theirs = socket.socketpair()
    try:
        ours.setblocking(False)
        with theirs:
            process = await Process.spawn(theirs, token, environment)
    except BaseException:
        ours.close()
        raise
    link = Link(receiver)
    try:
        await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
    except BaseException:
        ours.close()
        process.kill()
        raise
    return Started(process, link, token)


async def finish(started: Started) -> None:
    """Kills what is left of it, and waits within a bound until it is reaped."""
    process = started.process
    process.kill()
    await asyncio.wait([process.exited], timeout=KILL_WAIT_S)
    if not process.exited.done():  # in the kernel's hands, or a bug
        log.error("pid %s is not reaped %g s after SIGKILL", process.pid, KILL_WAIT_S)
    started.link.close()


async def exited_or(event: asyncio.Event, process: Process, timeout_s: float) -> None:
    """Waits until the process has exited, `event` is set, or the time is over; clears `event`."""
    woken: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait(
            [woken, process.exited], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        woken.cancel()
    event.clear()


async def within(what: Coroutine[Any, Any, Any], timeout_s: float) -> bool:
    """Whether it came to its end in time."""
    try:
        await asyncio.wait_for(what, timeout_s)
    except TimeoutError:
        return False
    return True


def record_of(pid: int) -> tuple[int, float] | None:
    """A pid with its creation time, which together name one process for good; None if unknown."""
    import psutil

    try:
        return pid, psutil.Process(pid).create_time()
    except (psutil.Error, OSError):  # it is gone, or there is no descriptor left to look at it
        return None


def end_survivors(records: list[tuple[int, float]]) -> list[int]:
    """Kills engines of an earlier life of the gateway; returns the pids that were still there.

    Only where pid and creation time both match: the pid alone may be somebody else's by now.
    """
    if not records:
        return []
    import psutil

    ended: list[psutil.Process] = []
    for pid, created in records:
        with contextlib.suppress(psutil.Error):  # gone, which is what is wanted
            process = psutil.Process(pid)
            if abs(process.create_time() - created) < 1.0 and _runs(process):
                process.kill()
                ended.append(process)
    deadline = time.monotonic() + KILL_WAIT_S
    while any(_runs(process) for process in ended) and time.monotonic() < deadline:
        time.sleep(SURVIVOR_POLL_S)
    return [process.pid for process in ended]


def _runs(process: psutil.Process) -> bool:
    """False for a zombie too: in a container nobody may ever ask for its exit code."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
