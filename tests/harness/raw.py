"""Clients on a bare socket, for what no client library would do."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from tests.harness.stream import Frames

TIMEOUT_S = 30.0


def request_bytes(path: str, body: bytes, *headers: str) -> bytes:
    """A POST as it goes over the wire."""
    return head_bytes(path, f"Content-Length: {len(body)}", *headers) + body


def head_bytes(path: str, *headers: str) -> bytes:
    """The head of a POST, whatever its headers promise of a body."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chat_bytes(model: str, text: str = "hello", **fields: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    return request_bytes("/v1/chat/completions", json.dumps(body).encode())


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    """A connection; a small receive buffer makes a slow reader felt at once."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(TIMEOUT_S)
    connection.connect(("127.0.0.1", port))
    return connection


@contextlib.contextmanager
def stalled(port: int, request: bytes) -> Iterator[socket.socket]:
    """A client that has sent its request, has read the head of the answer, and reads no more."""
    with connect(port, receive_buffer=4096) as connection:
        connection.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(1)
            assert received, f"closed within the head: {head!r}"
            head += received
        assert head.startswith(b"HTTP/1.1 200"), head
        yield connection


def read_rest(connection: socket.socket) -> bytes:
    """Everything until the other side closes, or drops the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(2**18):
            received += chunk
    return bytes(received)


def read_chunks(connection: socket.socket) -> bytes:
    """A chunked body to its end; the head has been read."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
    body = bytearray()
    with connection.makefile("rb") as reader:
        while size := int(reader.readline(), 16):
            body += reader.read(size)
            assert reader.readline() == b"\r\n"
    return bytes(body)


def stream_in(connection: socket.socket) -> Frames:
    """Reads an event stream to its end; the head has been read."""
    frames = Frames()
    for line in read_chunks(connection).decode().split("\n"):
        frames.take(line)
    return frames
