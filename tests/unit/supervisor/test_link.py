"""The gateway's end of an engine's socket, with a transport that only notes."""

from __future__ import annotations

import asyncio

import pytest

from engines import wire
from gateway.supervisor import link as module
from gateway.supervisor.link import UNSENT_BYTES, Link


class Receiver:
    def __init__(self) -> None:
        self.messages: list[wire.FromEngine] = []
        self.lost: list[str] = []
        self.lost_once = asyncio.Event()

    def on_message(self, message: wire.FromEngine) -> None:
        self.messages.append(message)

    def on_link_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.lost_once.set()


class Transport(asyncio.Transport):
    """Takes writes and never sends them, but for the `taken` bytes that a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.taken = 0
        self.aborted = False
        self.high: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return len(self.written) - self.taken

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def abort(self) -> None:
        self.aborted = True


HELLO = wire.Hello(wire.WIRE_VERSION, "token")
CANCEL = wire.Cancel(1, "why not")


def connected() -> tuple[Link, Receiver, Transport]:
    receiver, transport = Receiver(), Transport()
    link = Link(receiver)
    link.connection_made(transport)
    return link, receiver, transport


def test_frames_arrive_however_they_are_cut() -> None:
    link, receiver, _ = connected()
    frames = wire.encode_all([HELLO, wire.Started(1, 5), HELLO])
    for at in range(len(frames)):
        link.data_received(frames[at : at + 1])
    assert receiver.messages == [HELLO, wire.Started(1, 5), HELLO]
    assert receiver.lost == []


def test_a_message_goes_out_as_one_frame() -> None:
    link, _, transport = connected()
    link.send(CANCEL)
    assert wire.requests_decoder().feed(transport.written) == [CANCEL]


def test_nothing_is_sent_before_the_connection_and_after_its_end() -> None:
    link = Link(Receiver())
    link.send(CANCEL)
    link.close()
    link, receiver, transport = connected()
    link.connection_lost(None)
    link.send(CANCEL)
    assert transport.written == b""
    assert receiver.lost == ["the engine closed its connection"]


def test_a_broken_frame_ends_the_link_once() -> None:
    for garbage in (b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1"):
        link, receiver, transport = connected()
        link.data_received(garbage)
        link.connection_lost(None)
        assert transport.aborted
        assert len(receiver.lost) == 1
        assert receiver.lost[0].startswith("protocol error: a frame ")


@pytest.mark.anyio
async def test_an_engine_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_S", 0.001)
    link, receiver, transport = connected()
    assert transport.high == UNSENT_BYTES
    link.send_frame(bytes(UNSENT_BYTES))
    link.send(CANCEL)
    link.pause_writing()
    assert receiver.lost == []  # several large requests at once are no fault
    async with asyncio.timeout(30):
        await receiver.lost_once.wait()
    assert receiver.lost == ["the engine has stopped reading its requests"]
    assert transport.aborted


@pytest.mark.anyio
async def test_an_engine_that_reads_slowly_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_S", 0.001)

    looked_often = asyncio.Event()

    class Slow(Transport):
        def get_write_buffer_size(self) -> int:
            self.taken += 1
            if self.taken == 10:
                looked_often.set()
            return super().get_write_buffer_size()

    receiver, transport = Receiver(), Slow()
    link = Link(receiver)
    link.connection_made(transport)
    link.send(CANCEL)
    link.pause_writing()
    async with asyncio.timeout(30):
        await looked_often.wait()
    link.resume_writing()
    assert receiver.lost == []
    assert link._stall is None
