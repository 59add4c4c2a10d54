"""The daemon as a child process: started from a registry, watched over HTTP, stopped by SIGTERM.

`Daemon` owns the process; `Watch` owns the thread that follows its status. Times are seconds of the
monotonic clock, sizes bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 45.0
_ENGINES_GONE_S = 5.0
_HTTP_TIMEOUT_S = 10.0
_POLL_S = 0.05
_LOG_TAIL = 30


class DaemonError(Exception):
    """The daemon did not start, answer or stop as it should."""


@dataclass
class Daemon:
    """A running `mlx-gateway serve`."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    start_s: float = 0.0

    @classmethod
    def start(cls, config: Path, scratch: Path) -> Self:
        """Starts the daemon on a free port and waits for `GET /health`. Raises `DaemonError`.

        State, logs and run directory go into `scratch`, so nothing of the user's is touched.
        """
        log = scratch / "gateway.log"
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--port", "0"]
        environment = os.environ | {"MLX_GATEWAY_STATE_DIR": str(scratch / "state")}
        began = time.monotonic()
        with log.open("wb") as output:
            # A session of its own: Ctrl-C must reach the demo alone, which then stops the daemon.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        daemon = cls(process, log)
        try:
            daemon._wait_until_healthy(scratch / "state", began + START_TIMEOUT_S)
        except BaseException:
            daemon.kill()
            raise
        daemon.start_s = time.monotonic() - began
        return daemon

    def _wait_until_healthy(self, state: Path, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise DaemonError(
                    f"the daemon ended with exit code {self.process.returncode}:\n{self.log_tail()}"
                )
            self.url = self.url or _address(state)
            if self.url and self._healthy():
                return
            time.sleep(_POLL_S)
        raise DaemonError(f"no /health after {START_TIMEOUT_S:.0f} s:\n{self.log_tail()}")

    def _healthy(self) -> bool:
        try:
            self.get("/health")
        except (OSError, ValueError):
            return False
        return True

    def get(self, path: str) -> Any:
        """The JSON body of a GET. Raises `OSError` when there is none, also for an error status."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=_HTTP_TIMEOUT_S) as response:
            return json.load(response)

    def log_tail(self) -> str:
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-_LOG_TAIL:])

    def stop(self) -> list[str]:
        """SIGTERM, then waits for the daemon and all it started; says what did not go as promised.

        Whatever is still there afterwards is killed.
        """
        if self.process.poll() is not None:
            return [f"the daemon had ended by itself with exit code {self.process.returncode}"]
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        problems: list[str] = []
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
            if code != 0:
                problems.append(f"the daemon ended with exit code {code} and not 0")
        except subprocess.TimeoutExpired:
            problems.append(f"the daemon was still there {STOP_TIMEOUT_S:.0f} s after SIGTERM")
            self.kill()
        _, left = psutil.wait_procs(family, timeout=_ENGINES_GONE_S)
        for child in filter(alive, left):
            problems.append(f"the engine process {child.pid} was left behind")
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        return problems

    def kill(self) -> None:
        """Ends the daemon without asking; its engines end with it, as their socket closes."""
        self.process.kill()
        self.process.wait()


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; one that has ended and that nobody has reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _address(state: Path) -> str:
    """What the daemon wrote once it listened; empty before that."""
    try:
        return (state / "run" / "address").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Change:
    """A model was seen in a new state."""

    at: float
    model: str
    before: str
    after: str


@dataclass
class Watch:
    """Follows the states of all models through `GET /v1/status` while the `with` block runs."""

    daemon: Daemon
    changes: list[Change] = field(default_factory=list)
    _states: dict[str, str] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.observe(self.daemon.get("/v1/status"), time.monotonic())
        thread = threading.Thread(target=self._follow, name="status-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(_HTTP_TIMEOUT_S + 1)
        self.observe(self.daemon.get("/v1/status"), time.monotonic())

    def _follow(self) -> None:
        while not self._stop.wait(_POLL_S):
            try:
                status = self.daemon.get("/v1/status")
            except (OSError, ValueError):
                return  # the request being watched meets the same failure and reports it
            self.observe(status, time.monotonic())

    def observe(self, status: dict[str, Any], now: float) -> None:
        """Notes which models are in another state than at the last look."""
        for model in status["models"]:
            name, state = model["name"], model["state"]
            before = self._states.get(name)
            if before is not None and before != state:
                self.changes.append(Change(now, name, before, state))
            self._states[name] = state

    def load_seconds(self, model: str) -> float | None:
        """From the first sight of `loading` to `ready`, to about 0.1 s; None without a load."""
        began: float | None = None
        for change in self.changes:
            if change.model == model and change.after == "loading":
                began = change.at
            if change.model == model and change.after == "ready" and began is not None:
                return change.at - began
        return None

    def evicted(self) -> list[str]:
        """Models that were ready and are unloaded now."""
        were_ready = {change.model for change in self.changes if change.before == "ready"}
        return sorted(name for name in were_ready if self._states[name] == "unloaded")
