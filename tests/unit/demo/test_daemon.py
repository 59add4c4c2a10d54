from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo import daemon as demo_daemon
from demo.daemon import Change, Daemon, DaemonError, Watch

SERVER = """
import http.server, os, pathlib, signal, subprocess, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"models": []}')

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_CODE))
LEAVE_BEHIND
run = pathlib.Path(os.environ["MLX_GATEWAY_STATE_DIR"], "run")
run.mkdir(parents=True)
(run / "address").write_text(f"http://127.0.0.1:{server.server_port}")
server.serve_forever()
"""
ORPHAN = 'subprocess.Popen(["sleep", "300"], start_new_session=True)'

Program = Callable[[str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a script in the daemon's place."""

    def install(script: str) -> None:
        (tmp_path / "script.py").write_text(script)
        stand_in = tmp_path / "python"
        stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/script.py"\n')
        stand_in.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stand_in))

    return install


@pytest.fixture
def started(tmp_path: Path, program: Program) -> Iterator[Callable[..., Daemon]]:
    daemons: list[Daemon] = []

    def start(exit_code: int = 0, leave: str = "") -> Daemon:
        program(SERVER.replace("EXIT_CODE", str(exit_code)).replace("LEAVE_BEHIND", leave))
        daemons.append(Daemon.start(tmp_path / "registry.yaml", tmp_path))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.kill()


def test_a_daemon_is_started_asked_and_stopped(started: Callable[..., Daemon]) -> None:
    daemon = started()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", daemon.url)
    assert daemon.get("/v1/status") == {"models": []}
    assert daemon.stop() == []
    assert daemon.process.returncode == 0


def test_an_exit_code_is_a_problem(started: Callable[..., Daemon]) -> None:
    assert started(exit_code=70).stop() == ["the daemon ended with exit code 70 and not 0"]


def test_a_process_left_behind_is_named_and_killed(
    started: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_daemon, "_ENGINES_GONE_S", 0.1)
    daemon = started(leave=ORPHAN)
    (child,) = psutil.Process(daemon.process.pid).children()
    assert daemon.stop() == [f"the engine process {child.pid} was left behind"]
    psutil.wait_procs([child], timeout=10)
    assert not demo_daemon.alive(child)


def test_a_daemon_deaf_to_sigterm_is_killed(
    started: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_daemon, "STOP_TIMEOUT_S", 0.1)
    daemon = started(leave="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    assert daemon.stop() == ["the daemon was still there 0 s after SIGTERM"]
    assert daemon.process.returncode is not None


def test_a_daemon_that_dies_before_it_was_stopped(started: Callable[..., Daemon]) -> None:
    daemon = started()
    daemon.kill()
    assert daemon.stop() == ["the daemon had ended by itself with exit code -9"]


def test_a_daemon_that_refuses_to_start_is_quoted(tmp_path: Path, program: Program) -> None:
    program("raise SystemExit('registry.yaml:3: unknown key')")
    with pytest.raises(DaemonError, match=r"exit code 1:\nregistry\.yaml:3: unknown key"):
        Daemon.start(tmp_path / "registry.yaml", tmp_path)


def status(**states: str) -> dict[str, Any]:
    return {"models": [{"name": name, "state": state} for name, state in states.items()]}


def test_a_watch_knows_loads_and_evictions(started: Callable[..., Daemon]) -> None:
    watch = Watch(started())
    looks = [
        (0.0, status(a="ready", b="unloaded")),
        (1.0, status(a="unloading", b="unloaded")),
        (2.0, status(a="unloaded", b="loading")),
        (2.5, status(a="unloaded", b="loading")),
        (4.0, status(a="unloaded", b="ready")),
    ]
    for now, look in looks:
        watch.observe(look, now)
    assert watch.changes[0] == Change(1.0, "a", "ready", "unloading")
    assert watch.load_seconds("b") == 2.0
    assert watch.load_seconds("a") is None
    assert watch.evicted() == ["a"]


def test_a_watch_without_changes_is_empty(started: Callable[..., Daemon]) -> None:
    watch = Watch(started())
    with watch.running():
        pass
    assert (watch.changes, watch.evicted()) == ([], [])
