"""What a scripted engine does to its process: it waits, exits, hangs and freezes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Protocol

_HANG_WAKE_S = 3600.0


class Machine(Protocol):
    """What a scripted engine does to the world outside; tests give it one that only notes it."""

    def now(self) -> float: ...
    def wait(self, seconds: float) -> None: ...
    def exit(self, code: int) -> None: ...
    def hang(self) -> None: ...
    def freeze(self) -> None: ...
    def write_stderr(self, text: str) -> None: ...


class RealMachine:
    """The process it runs in."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def exit(self, code: int) -> None:
        os._exit(code)

    def hang(self) -> None:
        never = threading.Event()
        while not never.wait(_HANG_WAKE_S):
            pass

    def freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def write_stderr(self, text: str) -> None:
        sys.stderr.write(text)
