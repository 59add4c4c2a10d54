"""The socket of a tool process: one task in, reports out.

A thread says every second how far it is, which also says that the process lives, and ends it when
the command line is gone.
"""

from __future__ import annotations

import os
import select
import socket
import time
from threading import Lock, Thread

from engines import wire
from engines.process import EXIT_STOPPED

BEAT_S = 1.0
REPORT_EVERY_S = 0.1
_READ_BYTES = 64 * 1024


class Line:
    """Owns the socket; `report` and `send` may be called from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._lock = Lock()
        self._last = wire.Loading("starting")
        self._said_at = 0.0

    def task(self) -> wire.ToTool:
        """Waits for the task. Ends the process where none comes any more."""
        decoder = wire.tasks_decoder()
        while data := self._sock.recv(_READ_BYTES):
            for message in decoder.feed(data):
                return message
        os._exit(EXIT_STOPPED)

    def report(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Progress in bytes; told at once when the stage changes or ends, else now and then."""
        before, self._last = self._last, wire.Loading(stage, done, total)
        now = time.monotonic()
        over = total > 0 and done >= total
        if stage == before.stage and not over and now - self._said_at < REPORT_EVERY_S:
            return  # the thread will tell, unless more comes before
        self._said_at = now
        self.send(self._last)

    def send(self, message: wire.FromTool) -> None:
        try:
            with self._lock:
                self._sock.sendall(wire.encode(message))
        except OSError:  # nobody is there to be told
            os._exit(EXIT_STOPPED)

    def watch(self) -> None:
        """Starts the thread; nothing is expected from the socket any more but its end."""
        Thread(target=self._beat, name="beat", daemon=True).start()

    def _beat(self) -> None:
        while True:
            readable, _, _ = select.select([self._sock], [], [], BEAT_S)
            if readable and not self._sock.recv(_READ_BYTES):
                os._exit(EXIT_STOPPED)
            if not readable:
                self.send(self._last)
