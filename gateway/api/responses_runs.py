"""Responses in the background: they belong to the daemon and outlive the client that asked.

`Runs` owns each from `start` until it is over, and hands it to `on_over` then. A run keeps the
frames of its event stream, bounded in bytes, so that any number of readers can follow it, from
whatever frame on. Its number of frames says where it stands: frame n has the sequence number n.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from gateway.api.answer import Answer
from gateway.api.responses_encode import EventEncoder, Json, ResponsesDecoded, gone
from gateway.api.responses_store import Log
from gateway.api.sse import EventStream
from gateway.errors import GatewayError, InternalError, QueueFull, Unavailable
from gateway.supervisor.tasks import Tasks

MAX_RUNS = 32
MAX_READERS = 64
LOG_BYTES = 8 * 2**20
RETRY_S = 10.0

_FRAME_END = b"\n\n"


class Run:
    """One response in the background. `first` is the number of the oldest frame that is kept.

    `Runs` alone ends it.
    """

    def __init__(self, decoded: ResponsesDecoded, encoder: EventEncoder) -> None:
        self.decoded = decoded
        self.over = False
        self._encoder = encoder
        self._frames: deque[bytes] = deque()
        self.first = 0
        self._bytes = 0
        self._readers: set[Reader] = set()

    def response(self) -> Json:
        """The whole object as it is now."""
        return self._encoder.draft.response()

    def log(self) -> Log:
        return Log(self.first, tuple(self._frames))

    def record(self, frames: Sequence[bytes]) -> None:
        """Adds frames; the oldest ones make room."""
        self._frames.extend(frames)
        self._bytes += sum(map(len, frames))
        while self._bytes > LOG_BYTES:
            self._bytes -= len(self._frames.popleft())
            self.first += 1
        self.wake()

    def wake(self) -> None:
        for reader in self._readers:
            reader.wake()

    def join(self, after: int) -> Reader:
        """Somebody who reads what comes after frame `after`. Raises `Unavailable`."""
        if len(self._readers) >= MAX_READERS:
            raise Unavailable(
                f"{MAX_READERS} clients follow this response already; close one",
                retry_after_s=RETRY_S,
            )
        reader = Reader(self, after + 1)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def since(self, number: int) -> list[bytes] | None:
        """The frames from `number` on; None when some of them are gone."""
        if number < self.first:
            return None
        return list(islice(self._frames, number - self.first, None))


class Reader:
    """One client's place in a run."""

    def __init__(self, run: Run, number: int) -> None:
        self._run = run
        self._number = number
        self._left = False
        self._woken = asyncio.Event()

    @property
    def left(self) -> bool:
        return self._left

    def wake(self) -> None:
        self._woken.set()

    def leave(self) -> None:
        """The client has gone; leaving twice does nothing."""
        self._left = True
        self._run.leave(self)
        self.wake()

    async def batch(self, seconds: float) -> tuple[list[bytes], bool]:
        """Every frame at hand, waiting for the first one for so long, and whether they are all."""
        if not (self._run.over or self._left or self._run.since(self._number)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        self._woken.clear()
        over = self._run.over or self._left
        frames = self._run.since(self._number)
        if frames is None:
            message = "events that come next are no longer kept; fetch the response instead"
            return [gone(self._number, message)], True
        self._number += len(frames)
        return frames, over


class _Recorder(EventStream):
    """What an answer writes to when nobody needs to listen."""

    def __init__(self, run: Run) -> None:
        self.committed = True
        self._run = run

    async def write(self, frames: bytes) -> None:
        self._run.record(split(frames))

    async def end(self) -> None:
        """The run ends once its answer has returned."""


def split(frames: bytes) -> list[bytes]:
    """Frames one by one; JSON has no line ends of its own."""
    return [frame + _FRAME_END for frame in frames.split(_FRAME_END)[:-1]]


class Runs:
    """The owner of every response in the background that is not over."""

    def __init__(self, tasks: Tasks, on_over: Callable[[Run], None]) -> None:
        self._tasks = tasks
        self._on_over = on_over
        self._runs: dict[str, tuple[Run, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, response_id: str, owner: str) -> Run | None:
        run, _ = self._runs.get(response_id, (None, None))
        return run if run is not None and run.decoded.owner == owner else None

    def check_room(self) -> None:
        """Raises `QueueFull` when there are as many as may be."""
        if len(self._runs) >= MAX_RUNS:
            raise QueueFull(
                f"{MAX_RUNS} responses run in the background already; wait for one, or cancel one",
                retry_after_s=RETRY_S,
            )

    def start(self, decoded: ResponsesDecoded, answer: Answer, held: contextlib.ExitStack) -> Run:
        """Runs `answer` to its end, whoever listens; `held` is closed then."""
        encoder = EventEncoder(decoded, lambda *_: None)
        run = Run(decoded, encoder)
        run.record(encoder.begin())

        def failed(error: Exception) -> None:
            told = InternalError("the gateway failed while answering; its log says how")
            run.record(split(encoder.error(told)))
            self._end(run)

        task = self._tasks.supervised(
            f"response {decoded.id}", self._work(run, answer, encoder, held), failed
        )

        def stop() -> None:
            held.close()  # here too, because a task that has not begun never gets to it
            task.cancel()
            run.record(encoder.cancel())

        self._runs[decoded.id] = (run, stop)
        return run

    def cancel(self, run: Run) -> None:
        """Ends it at once, as cancelled."""
        _, stop = self._runs[run.decoded.id]
        stop()
        self._end(run)

    async def _work(
        self, run: Run, answer: Answer, encoder: EventEncoder, held: contextlib.ExitStack
    ) -> None:
        with held:
            try:
                await answer.stream(encoder, _Recorder(run))
            except GatewayError as error:
                run.record(split(encoder.error(error)))
        self._end(run)

    def _end(self, run: Run) -> None:
        del self._runs[run.decoded.id]
        run.over = True
        run.wake()
        self._on_over(run)
