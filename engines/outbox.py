"""Bytes on their way to the gateway. Shared by the worker's two threads, under one lock.

Invariants: bytes leave in the order of `put`; no call here ever blocks on the gateway. Whoever
puts tries the socket at once, so a token costs one system call and no change of threads; only what
the socket does not take waits here for the I/O thread.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from threading import Lock

LIMIT_BYTES = 8 * 2**20
"""From here on the outbox is full and the work thread makes no more steps."""

ROOM_BYTES = LIMIT_BYTES // 2
"""Full ends here, so that a slow reader does not wake the work thread for every frame."""

HEARTBEAT_LIMIT_BYTES = LIMIT_BYTES + 64 * 1024
"""A gateway that reads nothing at all gets no more heartbeats either beyond this."""

_CHUNK_BYTES = 256 * 1024


class Outbox:
    """`on_backlog` is called when bytes stay behind, `on_room` when a full outbox has drained."""

    def __init__(
        self, sock: socket.socket, on_backlog: Callable[[], None], on_room: Callable[[], None]
    ) -> None:
        self._sock = sock
        self._on_backlog = on_backlog
        self._on_room = on_room
        self._lock = Lock()
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._full = False
        self._closed = False

    @property
    def full(self) -> bool:
        """Advisory: the work thread asks before each step."""
        return self._full

    @property
    def empty(self) -> bool:
        return not self._pending

    def put(self, data: bytes) -> None:
        """Sends `data` now as far as the socket takes it, and keeps the rest."""
        with self._lock:
            if self._closed:
                return
            sent = 0 if self._pending else self._send(data)
            if sent == len(data):
                return
            self._pending.append(memoryview(data)[sent:])
            self._pending_bytes += len(data) - sent
            self._full = self._full or self._pending_bytes > LIMIT_BYTES
        self._on_backlog()

    def put_heartbeat(self, data: bytes) -> None:
        """Like `put`, but drops it once nobody has read for very long."""
        if self._pending_bytes <= HEARTBEAT_LIMIT_BYTES:
            self.put(data)

    def drain(self) -> None:
        """Sends what waits, as far as the socket takes it. For the I/O thread only."""
        with self._lock:
            while self._pending:
                chunk = self._pending[0]
                sent = self._send(chunk[:_CHUNK_BYTES])
                if self._closed:
                    return
                self._pending_bytes -= sent
                if sent == len(chunk):
                    self._pending.popleft()
                    continue
                self._pending[0] = chunk[sent:]
                if sent < _CHUNK_BYTES:
                    break
            room = self._full and self._pending_bytes <= ROOM_BYTES
            if room:
                self._full = False
        if room:
            self._on_room()

    def close(self) -> None:
        """Forgets what waits and takes nothing more: nobody is left to read it."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._closed = True
        self._full = False
        self._pending.clear()
        self._pending_bytes = 0

    def _send(self, data: bytes | memoryview) -> int:
        """Bytes the socket took; a broken one closes the outbox and takes everything.

        The I/O thread meets the same break as an end of file, so nothing has to be said here.
        """
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._forget()
            return len(data)
