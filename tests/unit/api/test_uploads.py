"""Uploads to disk: what is written is what was sent, and on any failure nothing stays."""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.api import uploads
from gateway.api.uploads import Form, Uploads
from gateway.errors import (
    BodyTooLarge,
    ClientGone,
    GatewayError,
    InvalidRequest,
    QueueFull,
    Unavailable,
)
from gateway.registry.schema import Server
from gateway.server import Scope
from tests.harness.forms import CONTENT_TYPE, form, wav
from tests.harness.in_process import until

pytestmark = pytest.mark.anyio

SOUND = wav(0.5)
GONE = {"type": "http.disconnect"}
SERVER = Server(max_upload_mb=1)


def scope(**headers: str) -> Scope:
    given = {"content_type": CONTENT_TYPE, **headers}
    lines = [(name.replace("_", "-").encode(), text.encode()) for name, text in given.items()]
    return {"headers": lines, "state": {"unread": False}}


class Client:
    """Sends `body` in pieces of `size`, then what `after` says, then nothing more."""

    def __init__(self, body: bytes, size: int = 1000, after: Sequence[dict[str, Any]] = ()) -> None:
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        self.messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
        ]
        self.messages += after or [{"type": "http.request", "body": b"", "more_body": False}]
        self.waits = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        if not self.messages:
            self.waits.set()
            await asyncio.Event().wait()
        return self.messages.pop(0)


def kept(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def read(folder: Path, body: bytes, **more: Any) -> Form:
    return await Uploads(folder).read(scope(), Client(body, **more), SERVER)


async def refused(folder: Path, body: bytes, **more: Any) -> GatewayError:
    with pytest.raises(GatewayError) as error:
        await read(folder, body, **more)
    assert kept(folder) == []
    return error.value


@pytest.mark.parametrize("size", [1, 97, 2**20])
async def test_a_file_and_the_fields_around_it(tmp_path: Path, size: int) -> None:
    body = form(("model", "ears"), ("file", SOUND, "a.mp3"), ("prompt", "then"))
    asked = scope()
    got = await Uploads(tmp_path).read(asked, Client(body, size), SERVER)
    assert got.fields == {"model": ["ears"], "prompt": ["then"]}
    assert got.file.path.read_bytes() == SOUND
    assert got.file.path.stat().st_mode & 0o777 == 0o600
    assert got.file.sha256 == hashlib.sha256(SOUND).hexdigest()
    assert (got.file.size, got.file.kind) == (len(SOUND), "audio/wav")
    assert kept(tmp_path) == [got.file.path]
    assert not asked["state"]["unread"]
    got.file.remove()


async def test_it_is_written_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "FLUSH_BYTES", 1000)
    client = Client(form(("file", SOUND, "a"))[:8000], after=[{"type": "http.request"}])
    client.messages.pop()
    reading = asyncio.ensure_future(Uploads(tmp_path).read(scope(), client, SERVER))
    await client.waits.wait()
    (file,) = kept(tmp_path)
    assert file.read_bytes() == SOUND[: file.stat().st_size]
    assert file.stat().st_size > 6000
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (form(("model", "m")), "file", "file: this field is required"),
        (form(("file", b"", "a.wav")), "file", "file: the file is empty"),
        (form(("file", b"\0" * 5000, "a.wav")), "file", "file: this is no audio"),
        (form(("file", b"<html>no audio</html>", "a.mp3")), "file", "file: this is no audio"),
        (form(("file", SOUND, "a"), ("file", SOUND, "b")), "file", "more than one"),
        (form(("file", SOUND, "a"))[:-10], None, "cut off"),
    ],
)
async def test_bad_forms(tmp_path: Path, body: bytes, param: str | None, message: str) -> None:
    error = await refused(tmp_path, body)
    assert isinstance(error, InvalidRequest)
    assert error.param == param
    assert message in error.message


async def test_a_declared_length_over_the_cap_is_refused_unread(tmp_path: Path) -> None:
    client = Client(b"")
    with pytest.raises(BodyTooLarge, match=r"limit of 1 MiB \(server\.max_upload_mb"):
        await Uploads(tmp_path).read(scope(content_length=str(2**20 + 1)), client, SERVER)
    assert len(client.messages) == 1


async def test_what_grows_over_the_cap_is_refused_there(tmp_path: Path) -> None:
    error = await refused(tmp_path, form(("file", SOUND + b"\0" * 2**21, "a")), size=2**16)
    assert isinstance(error, BodyTooLarge)


async def test_a_client_that_leaves_leaves_nothing(tmp_path: Path) -> None:
    error = await refused(tmp_path, form(("file", SOUND, "a"))[:9000], after=[GONE])
    assert isinstance(error, ClientGone)


async def test_a_client_that_stalls_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "READ_TIMEOUT_S", 0.01)
    client = Client(form(("file", SOUND, "a"))[:9000])
    client.messages.pop()
    asked = scope()
    with pytest.raises(InvalidRequest, match="stalled"):
        await Uploads(tmp_path).read(asked, client, SERVER)
    assert kept(tmp_path) == []
    assert asked["state"]["unread"]


async def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gateway.api.uploads.os.write", full)
    error = await refused(tmp_path, form(("file", SOUND, "a")))
    assert isinstance(error, Unavailable)
    assert "No space left on device" in error.message
    assert error.retry_after_s


async def test_without_a_folder_and_past_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="no folder"):
        await Uploads(None).read(scope(), Client(b""), SERVER)
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 1)
    both = Uploads(tmp_path)
    client = Client(form(("file", SOUND, "a"))[:5000])
    client.messages.pop()
    first = asyncio.ensure_future(both.read(scope(), client, SERVER))
    await client.waits.wait()
    with pytest.raises(QueueFull):
        await both.read(scope(), Client(b""), SERVER)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    again = await both.read(scope(), Client(form(("file", SOUND, "a"))), SERVER)
    again.file.remove()


async def test_a_length_that_is_no_number_says_nothing(tmp_path: Path) -> None:
    body = form(("file", SOUND, "a.wav"))
    got = await Uploads(tmp_path).read(scope(content_length="many"), Client(body), SERVER)
    got.file.remove()


async def test_a_disk_that_fails_after_the_client_has_left_is_nobodys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def full(descriptor: int, data: bytes) -> int:
        began.set()
        assert go_on.wait(30)
        raise OSError(errno.ENOSPC, "No space left on device")

    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    spool = uploads.Spool(tmp_path)
    monkeypatch.setattr(os, "write", full)
    writing = asyncio.ensure_future(spool.write(b"x"))
    assert await asyncio.to_thread(began.wait, 30)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    spool.discard()
    go_on.set()
    await until(lambda: kept(tmp_path) == [])
    del spool, writing
    gc.collect()
    assert reports == []
