"""An engine process: `python -m engines.worker`, started by the gateway, serving one model.

Two threads. The main thread is the I/O thread (this module): it owns the socket, the signals, the
heartbeat and the end of the process, and touches no model. The work thread (`engines.work`) owns
the engine. The I/O thread never waits for the work thread, so heartbeats go out and a stop is
carried out in time even when the model is stuck.

A spare is told by its environment what it will serve: the work thread imports the libraries of
that engine while the process waits for its `Load`. Until that comes, a stop ends it at once.

One stop path for `Shutdown`, SIGTERM and the end of the gateway's socket: take no more work,
finish the step at hand, end the running calls, close the engine, exit 0. The process ends anyway,
with 1, when that takes longer than allowed. All exit codes: `engines.process`.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
import traceback
from types import FrameType
from typing import NoReturn

import msgspec

from engines import process, wire
from engines.footprint import process_bytes
from engines.outbox import Outbox
from engines.work import BuildEngine, Work, build_engine

HEARTBEAT_EVERY_S = 1.0
FOOTPRINT_EVERY_S = 5.0
"""Reading it walks the page tables, which costs milliseconds in a process of many gigabytes."""

TERMINATE_GRACE_S = 10.0
END_OF_FILE_GRACE_S = 1.0
"""With the gateway gone nobody reads an orderly end, and the memory is wanted back."""

_READ_BYTES = 256 * 1024
_STDERR = 2


class Worker:
    """The I/O thread. `run` must be called on the main thread: it takes SIGTERM."""

    def __init__(self, connection: process.Connection, build: BuildEngine) -> None:
        self._sock = connection.sock
        self._token = connection.token
        self._decoder = wire.requests_decoder()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._outbox = Outbox(self._sock, on_backlog=self._wake, on_room=self._on_room)
        self._work = Work(self._outbox, self._wake, build, ahead=connection.imports)
        self._selector = selectors.DefaultSelector()
        self._reading = True
        self._has_model = False
        self._terminated = False
        self._ignores_stop = False
        self._deadline: float | None = None
        self._heartbeat_due = 0.0
        self._footprint_due = 0.0
        self._footprint_loaded = False
        self._footprint = 0

    def run(self) -> NoReturn:
        """Serves until the process ends."""
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_terminate)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._selector.register(self._sock, selectors.EVENT_READ)
        self._outbox.put(wire.encode(wire.Hello(wire.WIRE_VERSION, self._token)))
        self._work.start()
        while True:
            self._exit_if_over(time.monotonic())
            self._beat_if_due(time.monotonic())
            self._watch_for_room()
            for key, mask in self._selector.select(self._patience(time.monotonic())):
                if key.fileobj is not self._sock:
                    self._clear_wakes()
                    continue
                if mask & selectors.EVENT_WRITE:
                    self._outbox.drain()
                if mask & selectors.EVENT_READ:
                    self._read()
            if self._terminated:
                self._terminated = False
                self._stop(TERMINATE_GRACE_S)

    # --- what comes in --------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._on_end_of_file()
        for message in self._decoder.feed(data):
            self._on_message(message)

    def _on_message(self, message: wire.ToEngine) -> None:
        if isinstance(message, wire.Load):
            self._has_model = True
            self._ignores_stop = _ignores_stop(message.spec)
        if isinstance(message, wire.Shutdown):
            self._stop(message.grace_s)
        else:
            self._work.take(message)

    def _on_end_of_file(self) -> None:
        self._reading = False
        self._selector.unregister(self._sock)
        self._outbox.close()
        self._ignores_stop = False
        self._stop(END_OF_FILE_GRACE_S)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True

    def _stop(self, grace_s: float) -> None:
        """Starts the stop path, or brings its deadline forward."""
        if self._ignores_stop:
            return
        deadline = time.monotonic() + grace_s
        if self._deadline is None:
            self._deadline = deadline
            self._work.stop()
        self._deadline = min(self._deadline, deadline)

    # --- what goes out --------------------------------------------------------------------------

    def _beat_if_due(self, now: float) -> None:
        if now < self._heartbeat_due:
            return
        self._heartbeat_due = now + HEARTBEAT_EVERY_S
        progress = self._work.progress
        # A load changes the footprint more than anything after it.
        if now >= self._footprint_due or progress.loaded is not self._footprint_loaded:
            self._footprint_due = now + FOOTPRINT_EVERY_S
            self._footprint_loaded = progress.loaded
            self._footprint = process_bytes()
        memory = msgspec.structs.replace(progress.memory, process_bytes=self._footprint)
        self._outbox.put_heartbeat(
            wire.encode(
                wire.Heartbeat(
                    steps=progress.steps,
                    step=progress.step,
                    memory=memory,
                    running=progress.running,
                    waiting=progress.waiting,
                    prompt_cache=progress.prompt_cache,
                    features=progress.features,
                )
            )
        )

    def _watch_for_room(self) -> None:
        if not self._reading:
            return
        wanted = selectors.EVENT_READ | (0 if self._outbox.empty else selectors.EVENT_WRITE)
        if self._selector.get_key(self._sock).events != wanted:
            self._selector.modify(self._sock, wanted)

    def _on_room(self) -> None:
        self._work.wake()

    # --- waking and ending ----------------------------------------------------------------------

    def _patience(self, now: float) -> float:
        due = self._heartbeat_due
        if self._deadline is not None:
            due = min(due, self._deadline)
        return max(0.0, due - now)

    def _exit_if_over(self, now: float) -> None:
        """Ends the process when the work is done and sent, or when its time is up."""
        code = self._work.exit_code
        if code is not None and self._outbox.empty:
            _exit(code)
        if self._deadline is None:
            return
        if not self._has_model:
            _exit(process.EXIT_STOPPED)  # an import cannot be interrupted, and holds nothing
        if now >= self._deadline:
            _exit(process.EXIT_FORCED, f"stopped in the middle of: {self._work.progress.step}")

    def _wake(self) -> None:
        """Makes `select` return; safe on any thread. A full pipe wakes just as well."""
        try:
            os.write(self._wake_writer, b"\0")
        except BlockingIOError:
            return

    def _clear_wakes(self) -> None:
        try:
            os.read(self._wake_reader, 4096)
        except BlockingIOError:
            return


def _ignores_stop(spec: wire.EngineSpec) -> bool:
    """A scripted model can refuse to stop, so that the gateway's last resort can be tried out.

    Asked here because only this thread hears `Shutdown` and SIGTERM. The end of the socket is
    always obeyed.
    """
    return spec.engine == "scripted" and bool(spec.scripted.get("ignore_term", False))


def _exit(code: int, message: str = "") -> NoReturn:
    """Ends the process without interpreter shutdown, which could wait for a stuck thread.

    For the same reason the message goes past `sys.stderr`, whose lock a work thread blocked on a
    full pipe would hold, and only where it fits.
    """
    if message and select.select([], [_STDERR], [], 0)[1]:
        os.write(_STDERR, f"engine worker: {message}\n".encode()[-select.PIPE_BUF :])
    os._exit(code)


def main(build: BuildEngine = build_engine) -> NoReturn:
    """Becomes a worker that builds its engine with `build`; the exit code tells how it ended."""
    try:
        connection = process.claim_connection()
        process.settle()
    except process.NotAWorkerError as error:
        _exit(process.EXIT_USAGE, str(error))
    try:
        Worker(connection, build).run()
    except wire.WireError as error:
        _exit(process.EXIT_BUG, f"the gateway broke the protocol: {error}")
    except Exception:  # noqa: BLE001  the outermost frame: the exit code has to say it was a bug
        _exit(process.EXIT_BUG, traceback.format_exc())


if __name__ == "__main__":
    main()
