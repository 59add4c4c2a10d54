"""Worker processes for tests: starting one, talking to it from the gateway's end, ending it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from engines import wire

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 20.0
LIMITS = wire.Limits(0, 0, 0, 0, 0)
GIB = 1024**3

EventT = TypeVar("EventT", bound=wire.Message)


class Worker:
    """One worker process and the gateway's end of its socket pair."""

    def __init__(self, module: str = "engines.worker", **popen: Any) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(TIMEOUT_S)
        environment = dict(os.environ)
        environment[wire.FD_VARIABLE] = str(theirs.fileno())
        environment[wire.TOKEN_VARIABLE] = "a token"
        environment["LD_PRELOAD"] = "libc.so.6"  # there anyway; a grandchild must not see it
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **popen,
        )
        theirs.close()
        self._decoder = wire.events_decoder()
        self._unread: list[wire.FromEngine] = []

    def send(self, *messages: wire.ToEngine) -> None:
        self.sock.sendall(wire.encode_all(messages))

    def load(self, name: str = "model", **options: Any) -> Worker:
        self.send(wire.Load(wire.EngineSpec(name, "scripted", scripted=options), LIMITS))
        return self

    def ready(self, **options: Any) -> Worker:
        self.load(**options).until(wire.Ready)
        return self

    def generate(self, call_id: int, content: str = "hi", **fields: Any) -> None:
        self.send(wire.Generate(call_id, [{"role": "user", "content": content}], **fields))

    def messages(self) -> Iterator[wire.FromEngine]:
        """Everything the worker says, to the end of file."""
        while True:
            while self._unread:
                yield self._unread.pop(0)
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return
            if not data:
                return
            self._unread.extend(self._decoder.feed(data))

    def until(
        self, kind: type[EventT], accept: Callable[[EventT], bool] = lambda message: True
    ) -> EventT:
        """The next message of `kind` that `accept` takes; what comes before is dropped."""
        for message in self.messages():
            if isinstance(message, kind) and accept(message):
                return message
        raise AssertionError(f"the worker ended before any {kind.__name__}")

    def call(self, call_id: int) -> list[wire.FromEngine]:
        """The events of one call, to its end."""
        events: list[wire.FromEngine] = []
        for message in self.messages():
            if getattr(message, "id", None) == call_id:
                events.append(message)
                if isinstance(message, wire.Finished | wire.Failed):
                    break
        return events

    def until_stuck(self) -> None:
        """Until a call is there and one heartbeat's steps are the next one's too."""
        steps = -1
        while (beat := self.until(wire.Heartbeat, lambda beat: beat.running > 0)).steps != steps:
            steps = beat.steps

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def stderr(self) -> str:
        """All of it; only for a worker started with a pipe, after its end."""
        assert self.process.stderr is not None
        return str(self.process.stderr.read().decode())

    def stop(self) -> None:
        self.sock.close()
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


def script(*steps: object) -> str:
    return json.dumps({"script": steps})


def wait_until(what: Callable[[], bool]) -> None:
    pause = Event()
    for _ in range(int(TIMEOUT_S / 0.02)):
        if what():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come true in time")
