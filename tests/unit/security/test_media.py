"""The guard around what clients name: a canary on this machine must never be hit through it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import socket
import stat
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.security import media
from gateway.security.media import MediaFile, MediaRules, fetch_media, sweep
from tests.unit.security.test_images import png

pytestmark = pytest.mark.anyio

PNG = png(8, 8)
INLINE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


@pytest.fixture
def rules(tmp_path: Path) -> MediaRules:
    folder = tmp_path / "media"
    sweep(folder)
    return MediaRules(folder)


async def refused(url: str, rules: MediaRules) -> str:
    with pytest.raises(InvalidRequest) as raised:
        await fetch_media(url, rules, "messages[0]")
    assert raised.value.param == "messages[0]"
    assert not list(rules.folder.iterdir())
    return raised.value.message


def check(found: MediaFile) -> None:
    assert (found.kind, found.size) == ("image/png", len(PNG))
    assert found.sha256 == hashlib.sha256(PNG).hexdigest()
    assert found.path.read_bytes() == PNG
    assert stat.S_IMODE(found.path.stat().st_mode) == 0o600
    found.remove()
    found.remove()
    assert not found.path.exists()


async def test_what_a_thread_still_writes_is_removed(
    rules: MediaRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, over = asyncio.Event(), threading.Event(), asyncio.Event()
    loop, write, remove = asyncio.get_running_loop(), media._write, MediaFile.remove

    def slow(*given: Any) -> MediaFile:
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(30)
        return write(*given)

    def removing(file: MediaFile) -> None:
        remove(file)
        over.set()

    monkeypatch.setattr(media, "_write", slow)
    monkeypatch.setattr(MediaFile, "remove", removing)
    fetching = asyncio.ensure_future(fetch_media(INLINE, rules))
    async with asyncio.timeout(30):
        await began.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        go_on.set()
        await over.wait()
    assert not list(rules.folder.iterdir())


# --- in the request -------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [INLINE, INLINE.rstrip("="), INLINE.replace("data", "DATA")])
async def test_an_image_in_the_request(rules: MediaRules, url: str) -> None:
    check(await fetch_media(url, rules))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "has to be data:image/TYPE;base64,DATA"),
        ("data:image/png,abc", "has to be data:image/TYPE;base64,DATA"),
        ("data:image/png;base64,@@@@", "not base64"),
        ("data:image/png;base64,aGVsbG8=", "no image"),
        ("data:image/png;base64,", "no image"),
        ("data:text/html;base64,PGI+", "has to say that it is an image"),
        ("", "has to begin with"),
        ("/etc/hosts", "cannot be read from there"),
        ("../../etc/hosts", "has to begin with"),
        ("gopher://127.0.0.1/", "has to begin with"),
        ("http://[", "malformed"),
        ("http://a:99999999/", "malformed"),
        ("http://", "not one of the web"),
        ("http://example.com@127.0.0.1/", "user name"),
        ("http://example.com\\@127.0.0.1/", "user name"),
        ("http://exa mple.com/", "escaped"),
        ("http://ex\u00e4mple.com/", "escaped"),
        ("https://example.com/" + "x" * 9000, "more than 8192"),
        ("file:///etc/hosts", "cannot be read from there"),
        ("file:///no/such/file", "cannot be read from there"),
        ("file://server/share", "another machine"),
        ("file:///%00", "cannot be read from there"),
    ],
)
async def test_addresses_that_are_refused(rules: MediaRules, url: str, message: str) -> None:
    assert message in await refused(url, rules)


async def test_a_large_image_in_the_request(rules: MediaRules) -> None:
    assert "larger than 10 bytes" in await refused(INLINE, replace(rules, max_bytes=10))


# --- on this machine ------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["file:///mnt/gone/a.png", "https://slow.example/a.png"])
async def test_what_does_not_answer_leaves_threads_to_the_others(
    url: str, rules: MediaRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()

    def stuck(*given: Any, **more: Any) -> Any:
        assert back.wait(60)
        raise OSError("it is back")

    monkeypatch.setattr(media, "_local", stuck)
    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    try:
        brief = replace(rules, timeout_s=0.05)
        answers = [refused(url, brief) for _ in range(40)]  # more than the loop has threads
        assert all("took longer" in each for each in await asyncio.gather(*answers))
        async with asyncio.timeout(30):
            await asyncio.to_thread(back.is_set)
    finally:
        back.set()


async def test_only_files_below_a_root(rules: MediaRules, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "secret.png"
    root.mkdir()
    outside.write_bytes(PNG)
    (root / "a b.png").write_bytes(PNG)
    (root / "link.png").symlink_to(outside)
    rules = replace(rules, roots=(root,))
    check(await fetch_media(f"file://{root}/a%20b.png", rules))
    check(await fetch_media(f"{root}/a b.png", rules))
    for path in (outside, root / "link.png", root / ".." / "secret.png", root):
        assert "cannot be read from there" in await refused(f"file://{path}", rules)


# --- on the web -----------------------------------------------------------------------------------


class Canary:
    """A server on this machine: `answers` by path, `asked` as they came."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[bytes] = []
        self.answers: dict[bytes, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head)
            writer.write(self.answers.get(head.split(b" ")[1], b""))
            await writer.drain()
        writer.close()


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def to(url: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    made = Canary()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


PUBLIC = "public.example"


def names(rules: MediaRules, **addresses: str) -> MediaRules:
    """Names resolve to these; `public.example` is this machine and counts as public."""

    async def resolve(host: str, port: int) -> list[str]:
        return addresses.get(host.split(".", maxsplit=1)[0], "127.0.0.1").split()

    return replace(rules, resolve=resolve, allows=lambda address: address == "127.0.0.1")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::1]", "0.0.0.0"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "169.254.169.254", "[fe80::1%25lo]"),
    ],
)
async def test_this_machine_is_never_asked(rules: MediaRules, canary: Canary, host: str) -> None:
    message = await refused(f"http://{host}:{canary.port}/hit", rules)
    assert "public internet" in message or "resolved" in message
    assert not canary.asked


async def test_an_image_of_the_web(rules: MediaRules, canary: Canary) -> None:
    canary.answers = {b"/a": to("/b?c=d"), b"/b?c=d": ok(PNG)}
    check(await fetch_media(f"http://{PUBLIC}:{canary.port}/a", names(rules)))
    assert all(f"host: {PUBLIC}:{canary.port}".encode() in head for head in canary.asked)


async def test_every_redirect_is_looked_at_anew(rules: MediaRules, canary: Canary) -> None:
    guarded = names(rules, inner="10.0.0.1")
    for target in ("http://inner.example/", "file:///etc/hosts", "gopher://x/", "http://a@b/"):
        canary.answers = {b"/r": to(target)}
        await refused(f"http://{PUBLIC}:{canary.port}/r", guarded)
    assert len(canary.asked) == 4


async def test_redirects_end(rules: MediaRules, canary: Canary) -> None:
    canary.answers = {b"/r": to("/r")}
    message = await refused(f"http://{PUBLIC}:{canary.port}/r", names(rules))
    assert "more than 3 redirects" in message
    assert len(canary.asked) == 4


async def test_one_inner_address_among_others_is_enough(rules: MediaRules, canary: Canary) -> None:
    mixed = names(rules, public="127.0.0.1 10.0.0.1")
    assert "public internet" in await refused(f"http://{PUBLIC}:{canary.port}/", mixed)
    assert not canary.asked


async def test_a_name_is_resolved_once_so_it_cannot_change(
    rules: MediaRules, canary: Canary
) -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    canary.answers = {b"/": ok(PNG)}
    check(
        await fetch_media(
            f"http://{PUBLIC}:{canary.port}/", replace(names(rules), resolve=rebinding)
        )
    )
    assert asked == [PUBLIC]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ok(b"<html>"), "no image"),
        (ok(PNG + b"x" * 2000), "larger than 1,000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + PNG + b"x" * 2000, "larger than 1,000 bytes"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answers 404"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "redirects to nowhere"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nabc", "breaks off"),
        (b"nonsense\r\n\r\n", "breaks off"),
        (b"", "breaks off"),
    ],
)
async def test_servers_that_answer_something_else(
    rules: MediaRules, canary: Canary, answer: bytes, message: str
) -> None:
    canary.answers = {b"/": answer}
    bounded = replace(names(rules), max_bytes=1000)
    assert message in await refused(f"http://{PUBLIC}:{canary.port}/", bounded)


async def test_a_server_that_says_nothing_is_given_up(rules: MediaRules) -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    silent = replace(rules, resolve=never, timeout_s=0.05)
    assert "took longer than 0.05 s" in await refused(f"http://{PUBLIC}/", silent)


async def test_what_an_earlier_life_left_is_swept(rules: MediaRules) -> None:
    left = await fetch_media(INLINE, rules)
    (rules.folder / "other").touch()
    sweep(rules.folder)
    assert [path.name for path in rules.folder.iterdir()] == ["other"]
    assert not left.path.exists()
