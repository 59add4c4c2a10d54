"""A client process that holds many streams open and does nothing but count frames.

`python -m tests.bench.counting_client PORT MODEL STREAMS` opens the streams, prints `ready` once
each has had its first frame, and then answers every line on its standard input with the number of
frames with text so far. It ends when its input ends.
"""

from __future__ import annotations

import asyncio
import sys

from tests.harness.raw import chat_bytes

FRAME_END = b"\n\n"
OPEN_AT_A_TIME = 50


class Counter(asyncio.Protocol):
    """Counts the ends of SSE frames; the first one is the role chunk."""

    frames = 0

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.started = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        # A frame's two newlines may come in two pieces.
        ends = (self._tail + data).count(FRAME_END)
        self._tail = b"\n" if data.endswith(b"\n") and not data.endswith(FRAME_END) else b""
        Counter.frames += ends
        if ends and not self.started.done():
            self.started.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.started.done():
            self.started.set_exception(ConnectionError("a stream ended before its first frame"))


async def main(port: int, model: str, streams: int) -> None:
    loop = asyncio.get_running_loop()
    request = chat_bytes(model, stream=True)
    counters: list[Counter] = []
    for first in range(0, streams, OPEN_AT_A_TIME):
        batch = range(min(OPEN_AT_A_TIME, streams - first))
        made = await asyncio.gather(
            *(loop.create_connection(lambda: Counter(request), "127.0.0.1", port) for _ in batch)
        )
        counters += [counter for _, counter in made]
    await asyncio.gather(*(counter.started for counter in counters))
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(Counter.frames, flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
