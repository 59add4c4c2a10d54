"""The least that passing events on can cost here: a bare asyncio relay, measured like the gateway.

`python -m tests.bench.relay RATE` reads one message at a time from a socket pair, writes one frame
to a TCP connection, and prints its CPU seconds per event.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time

MESSAGE = b"m" * 32
FRAME = b"f" * 250
SECONDS = 3.0
TIMEOUT_S = 60.0

SENDER = """
import socket, sys, time
to, rate, size = socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]), int(sys.argv[3])
due = time.perf_counter()
while True:
    due += 1 / rate
    time.sleep(max(0, due - time.perf_counter()))
    to.sendall(b"m" * size)
"""

READER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while connection.recv(65536):
    pass
"""


def relay_cost(rate: float) -> float:
    """CPU microseconds per event at so many events a second."""
    command = [sys.executable, "-m", "tests.bench.relay", str(rate)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return 1e6 * float(output.stdout)


class _Relay(asyncio.Protocol):
    events = 0

    def __init__(self, to: asyncio.WriteTransport) -> None:
        self._to = to

    def data_received(self, data: bytes) -> None:
        for _ in range(len(data) // len(MESSAGE)):
            self._to.write(FRAME)
            self.events += 1


async def _run(ours: socket.socket, client: socket.socket) -> float:
    loop = asyncio.get_running_loop()
    to, _ = await loop.connect_accepted_socket(asyncio.Protocol, client)
    _, relay = await loop.create_connection(lambda: _Relay(to), sock=ours)
    before, counted = time.process_time(), relay.events
    await asyncio.sleep(SECONDS)
    cost = (time.process_time() - before) / max(1, relay.events - counted)
    to.abort()
    return cost


def main(rate: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    port = str(listener.getsockname()[1])
    reader = subprocess.Popen([sys.executable, "-c", READER, port])
    client, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    arguments = [str(theirs.fileno()), rate, str(len(MESSAGE))]
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER, *arguments], pass_fds=(theirs.fileno(),)
    )
    watchdog = threading.Timer(TIMEOUT_S / 2, sender.kill)
    watchdog.start()
    try:
        print(asyncio.run(_run(ours, client)))
    finally:
        watchdog.cancel()
        for process in (sender, reader):
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(sys.argv[1])
