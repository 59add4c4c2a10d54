"""The socket of a tool process, read from the other end."""

from __future__ import annotations

import socket

from engines import wire
from engines.tools.line import Line

TASK = wire.LookUp("maker/it", "main")


def test_a_task_comes_in_and_reports_go_out() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = Line(theirs)
        frame = wire.encode(TASK)
        ours.sendall(frame[:3])
        ours.sendall(frame[3:])
        assert line.task() == TASK
        line.report("one", 0, 10)
        line.report("one", 1, 10)  # too soon after the first
        line.report("one", 10, 10)
        line.report("two")
        line.send(wire.ToolDone({"a": 1}))
        theirs.shutdown(socket.SHUT_WR)
        decoder, told = wire.reports_decoder(), []
        while data := ours.recv(1024):
            told += decoder.feed(data)
    assert told == [
        wire.Loading("one", 0, 10),
        wire.Loading("one", 10, 10),
        wire.Loading("two"),
        wire.ToolDone({"a": 1}),
    ]
