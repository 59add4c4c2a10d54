"""Runs one task in `python -m engines.tools` and waits for it. Blocking: for the command line.

The process has a session of its own, so that a Ctrl-C reaches us alone; it is ended and reaped
however the wait ends. What it leaves in a staging folder is used again by the next try.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engines import wire
from gateway.supervisor.process import engine_environment, interpreter

SILENCE_S = 120.0
"""It says every second that it lives; one that says nothing for so long is stuck."""

END_S = 10.0
KILL_WAIT_S = 30.0
DRAIN_S = 1.0
STDERR_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024

Hear = Callable[[wire.Loading], None]


class TaskFailed(Exception):
    """What the person is told; `code` says of what sort it is."""

    def __init__(self, message: str, code: wire.ToolFailure = "failed") -> None:
        super().__init__(message)
        self.code: wire.ToolFailure = code


def tool_environment(environ: Mapping[str, str], *, online: bool) -> dict[str, str]:
    """As an engine's; with `online` the hub may be asked, unless the operator said otherwise."""
    environment = engine_environment(environ, {"HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    if online:
        del environment["HF_HUB_OFFLINE"]
        if (said := environ.get("HF_HUB_OFFLINE")) is not None:
            environment["HF_HUB_OFFLINE"] = said
    return environment


def run_task(task: wire.ToTool, hear: Hear, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the task came to. Raises `TaskFailed`."""
    environment = tool_environment(environ, online=not isinstance(task, wire.Convert))
    with _started(environment) as (process, sock):
        try:
            sock.sendall(wire.encode(task))
        except OSError as error:
            raise TaskFailed(f"the tool process cannot be told its task: {error}") from error
        return _Watch(process, sock, hear).until_done()


@contextlib.contextmanager
def _started(
    environment: Mapping[str, str],
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            fd = theirs.fileno()
            process = subprocess.Popen(
                [*interpreter(), "-m", "engines.tools"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(fd,),
                start_new_session=True,
                env={**environment, wire.FD_VARIABLE: str(fd), wire.TOKEN_VARIABLE: "tool"},
            )
        try:
            yield process, ours
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its files are safe however it ends, so it is only asked once."""
    try:
        process.terminate()
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(KILL_WAIT_S)
    finally:
        if process.stderr is not None:
            process.stderr.close()


class _Watch:
    """Reads reports and stderr until the task has ended."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, hear: Hear) -> None:
        self._process = process
        self._sock = sock
        self._hear = hear
        self._decoder = wire.reports_decoder()
        self._said = b""

    def until_done(self) -> dict[str, Any]:
        """Raises `TaskFailed`."""
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(self._process.stderr, selectors.EVENT_READ)
            heard_at = time.monotonic()
            while (left := heard_at + SILENCE_S - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj is not self._sock:
                        self._read_stderr(selector)
                        continue
                    heard_at = time.monotonic()
                    if (result := self._read(selector)) is not None:
                        return result
        raise TaskFailed(f"the tool process has said nothing for {SILENCE_S:g} s and was ended")

    def _read(self, selector: selectors.BaseSelector) -> dict[str, Any] | None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except ConnectionError:  # it ended before it had read its task
            data = b""
        if not data:
            selector.unregister(self._sock)
            raise TaskFailed(self._death(selector))
        try:
            messages = self._decoder.feed(data)
        except wire.WireError as error:
            raise TaskFailed(f"the tool process cannot be understood: {error}") from error
        for message in messages:
            match message:
                case wire.Loading():
                    self._hear(message)
                case wire.ToolDone(result):
                    return result
                case wire.ToolFailed(code, text):
                    raise TaskFailed(text, code)
        return None

    def _read_stderr(self, selector: selectors.BaseSelector) -> bool:
        """Whether there may be more."""
        assert self._process.stderr is not None
        chunk = os.read(self._process.stderr.fileno(), _READ_BYTES)
        self._said = (self._said + chunk)[-STDERR_BYTES:]
        if not chunk:
            selector.unregister(self._process.stderr)
        return bool(chunk)

    def _death(self, selector: selectors.BaseSelector) -> str:
        """How it ended without a word, and its last one on stderr."""
        while selector.get_map() and selector.select(DRAIN_S) and self._read_stderr(selector):
            pass
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "the tool process closed its connection and stays"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        lines = self._said.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"the tool process {how}" + (f": {last[:300]}" if last else "")
