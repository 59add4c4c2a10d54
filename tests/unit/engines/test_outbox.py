"""The outbox over a real socket pair: order, back-pressure, a peer that is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from engines.outbox import HEARTBEAT_LIMIT_BYTES, LIMIT_BYTES, ROOM_BYTES, Outbox


class Ends:
    """An outbox, the other end of its socket, and how often it called back."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.ours = ours
        self.backlogs = 0
        self.rooms = 0
        self.outbox = Outbox(ours, self._on_backlog, self._on_room)

    def _on_backlog(self) -> None:
        self.backlogs += 1

    def _on_room(self) -> None:
        self.rooms += 1

    def read_all(self) -> bytes:
        """What the peer gets while the outbox is drained, until neither moves any more."""
        received = bytearray()
        while True:
            try:
                received += self.peer.recv(2**20)
            except BlockingIOError:
                if self.outbox.empty:
                    return bytes(received)
            self.outbox.drain()


@pytest.fixture
def ends() -> Iterator[Ends]:
    pair = Ends()
    yield pair
    pair.ours.close()
    pair.peer.close()


def test_what_fits_goes_out_at_once(ends: Ends) -> None:
    ends.outbox.put(b"hello")
    assert ends.peer.recv(100) == b"hello"
    assert ends.outbox.empty
    assert ends.backlogs == 0


def test_bytes_keep_their_order_whatever_the_socket_takes(ends: Ends) -> None:
    pieces = [bytes([number]) * 100_000 for number in range(60)]
    for piece in pieces:
        ends.outbox.put(piece)
    assert not ends.outbox.empty
    assert ends.backlogs > 0
    assert ends.read_all() == b"".join(pieces)


def fill(outbox: Outbox) -> int:
    sent = 0
    while not outbox.full:
        outbox.put(b"x" * 2**16)
        sent += 2**16
    return sent


def test_full_begins_at_the_limit_and_ends_once_with_room(ends: Ends) -> None:
    sent = fill(ends.outbox)
    assert sent > LIMIT_BYTES
    received = 0
    while ends.outbox.full:
        received += len(ends.peer.recv(2**16))
        ends.outbox.drain()
    assert received >= LIMIT_BYTES - ROOM_BYTES
    assert ends.rooms == 1
    assert received + len(ends.read_all()) == sent
    assert ends.rooms == 1


def test_heartbeats_pass_a_full_outbox_but_not_for_ever(ends: Ends) -> None:
    sent = fill(ends.outbox)
    beat = b"b" * 1024
    for _ in range(1000):
        ends.outbox.put_heartbeat(beat)
    received = ends.read_all()
    beats = len(received) - sent
    assert 0 < beats <= HEARTBEAT_LIMIT_BYTES - LIMIT_BYTES + len(beat)


def test_a_peer_that_is_gone_takes_everything(ends: Ends) -> None:
    fill(ends.outbox)
    ends.peer.close()
    ends.outbox.drain()
    assert ends.outbox.empty
    assert not ends.outbox.full
    ends.outbox.put(b"nobody reads this")
    assert ends.outbox.empty


def test_a_broken_pipe_is_met_by_put_as_well(ends: Ends) -> None:
    ends.peer.close()
    ends.outbox.put(b"x")
    ends.outbox.put(b"y")
    assert ends.outbox.empty


def test_close_forgets_what_waits(ends: Ends) -> None:
    fill(ends.outbox)
    ends.outbox.close()
    assert ends.outbox.empty
    assert not ends.outbox.full
