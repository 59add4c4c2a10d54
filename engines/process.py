"""What a worker does to its own process before anything else: descriptor, parent, session, signals.

Called once, on the main thread, before any other thread exists.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
from dataclasses import dataclass

from engines import wire

EXIT_STOPPED = 0
"""Asked to stop (`Shutdown`, SIGTERM or the gateway's end of the socket closed), and did."""

EXIT_FORCED = 1
"""Asked to stop and could not in time: the work thread was stuck."""

EXIT_USAGE = 64
"""Not started by a gateway."""

EXIT_LOAD_FAILED = 69
"""The model could not be loaded; `LoadFailed` was sent before."""

EXIT_BUG = 70
"""An exception nobody expected, or a gateway that broke the protocol; stderr has the details."""

_ON_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1


class NotAWorkerError(Exception):
    """The environment lacks what a gateway gives its workers."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The worker's end of the socket pair, non-blocking, and what `Hello` has to repeat.

    `imports` names the engine whose libraries are imported ahead of a `Load`; "" is none.
    """

    sock: socket.socket
    token: str
    imports: str = ""


def claim_connection() -> Connection:
    """Takes what the gateway gave out of the environment. Raises `NotAWorkerError`.

    The descriptor stops being inheritable at once: a grandchild holding it open would hide the
    worker's death from the gateway.
    """
    number = os.environ.pop(wire.FD_VARIABLE, "")
    token = os.environ.pop(wire.TOKEN_VARIABLE, None)
    imports = os.environ.pop(wire.IMPORT_VARIABLE, "")
    if not number.isdecimal() or token is None:
        raise NotAWorkerError(
            f"{wire.FD_VARIABLE} and {wire.TOKEN_VARIABLE} are not set: "
            "an engine worker is started by `mlx-gateway serve`, not by hand"
        )
    try:
        os.set_inheritable(int(number), False)
        sock = socket.socket(fileno=int(number))
    except OSError as error:
        raise NotAWorkerError(f"{wire.FD_VARIABLE}={number} is no socket: {error}") from error
    sock.setblocking(False)
    return Connection(sock, token, imports)


def settle() -> None:
    """Ties the process to its parent's life, gives it a session of its own, tidies what it got.

    The preloaded BLAS is in this process by now; its variable goes, so that children (ffmpeg) do
    not load it too. SIGINT is left to the gateway: a Ctrl-C in a terminal reaches both. SIGUSR1
    writes the stack of every thread to stderr, which is how a hung model is looked at.
    """
    die_with_parent()
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.environ.pop("LD_PRELOAD", None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def die_with_parent() -> None:
    """Linux: the kernel kills this process when its parent's spawning thread ends.

    Elsewhere the closed socket is the only sign, which the I/O thread sees. A parent that was gone
    before the call is noticed by the second look, since no signal comes for it any more.
    """
    if not _ON_LINUX:
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        os._exit(EXIT_STOPPED)
