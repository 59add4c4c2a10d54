"""Media that a request names, brought to a file: from the request, the web, or this machine.

The web is reached through a guard that looks at every address of a name and then connects to the
one it has looked at, for each redirect anew, so nothing can change in between. A file of ours is
0600 in a folder of the gateway's own; whoever asked for it removes it, and `sweep` what a gateway
that was killed has left.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from uuid import uuid4

import httpcore

from gateway.errors import InvalidRequest
from gateway.security.addresses import is_public
from gateway.security.containers import MediaKind, NotMedia, look_inside
from gateway.security.images import NotAnImage, look_at
from gateway.threads import in_thread

FILE_MODE = 0o600
MAX_URL = 8192
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
SUFFIX = ".media"

Resolve = Callable[[str, int], Awaitable[list[str]]]


class BadMedia(Exception):
    """Why it cannot be had, in a client's words."""


async def resolve(host: str, port: int) -> list[str]:
    """Every numeric address of a name, as the system resolves it. Raises `OSError`.

    Not in the loop's own threads: a few names whose servers do not answer would hold all of them.
    """
    found = await in_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True, slots=True)
class MediaRules:
    """What is looked for, where files go, what local files may be read, and the bounds of one.

    `allows` judges a numeric address; `resolve` and `tls` are there for tests.
    """

    folder: Path
    roots: tuple[Path, ...] = ()
    max_bytes: int = 20 * 2**20
    timeout_s: float = 20.0
    allows: Callable[[str], bool] = is_public
    resolve: Resolve = resolve
    tls: ssl.SSLContext | None = None
    kind: MediaKind = "image"


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file at hand; `size` is in bytes, `kind` its media type by its content."""

    path: Path
    kind: str
    size: int
    sha256: str

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


async def fetch_media(url: str, rules: MediaRules, param: str | None = None) -> MediaFile:
    """What is at `url`. Raises `InvalidRequest` with `param` for whatever is wrong with it.

    Raises `OSError` where the folder takes no file.
    """
    try:
        async with asyncio.timeout(rules.timeout_s):
            data = await _data(url, rules)
        media_type = _look(data, rules.kind)
    except TimeoutError:
        raise _refused(f"it took longer than {rules.timeout_s:g} s", param, rules) from None
    except (BadMedia, NotAnImage, NotMedia) as error:
        raise _refused(str(error), param, rules) from None
    writing = asyncio.to_thread(_write, rules.folder, media_type, data)
    return await _kept(asyncio.ensure_future(writing))


def _look(data: bytes, kind: MediaKind) -> str:
    """The media type by the content. Raises `NotAnImage`, `NotMedia`."""
    return look_at(data).kind if kind == "image" else look_inside(kind, data)


async def _kept(writing: asyncio.Future[MediaFile]) -> MediaFile:
    """A thread cannot be cancelled: what it still writes then is removed once it is there."""
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(_unwanted)
        raise


def _unwanted(writing: asyncio.Future[MediaFile]) -> None:
    if not writing.cancelled() and writing.exception() is None:
        writing.result().remove()


def sweep(folder: Path) -> None:
    """Makes the folder, and empties it of what an earlier life has left."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.glob(f"*{SUFFIX}"):
        path.unlink(missing_ok=True)


def _refused(why: str, param: str | None, rules: MediaRules) -> InvalidRequest:
    place = f"{param}: " if param else ""
    return InvalidRequest(f"{place}the {rules.kind} cannot be used: {why}", param=param)


def _write(folder: Path, kind: str, data: bytes) -> MediaFile:
    path = folder / f"{uuid4().hex}{SUFFIX}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return MediaFile(path, kind, len(data), hashlib.sha256(data).hexdigest())


async def _data(url: str, rules: MediaRules) -> bytes:
    if url[:5].lower() == "data:":
        return _inline(url, rules)
    if len(url) > MAX_URL:
        raise BadMedia(f"its address has more than {MAX_URL} characters")
    match _split(url).scheme.lower():
        case "http" | "https":
            return await _Web(rules).get(url)
        case "file":
            return await in_thread(_local, url, rules)
        case "" if url.startswith("/"):
            return await in_thread(_local, f"file://{quote(url)}", rules)
        case _:
            raise BadMedia("its address has to begin with data:, https:// or http://")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise BadMedia("its address is malformed") from None
    return parts


# --- in the request -------------------------------------------------------------------------------


def _inline(url: str, rules: MediaRules) -> bytes:
    """`data:image/png;base64,...`; padding may be left out."""
    head, comma, text = url[5:].partition(",")
    kind, *flags = head.lower().split(";")
    if not comma or "base64" not in [flag.strip() for flag in flags]:
        raise BadMedia(f"a data: address has to be data:{rules.kind}/TYPE;base64,DATA")
    if not kind.strip().startswith(f"{rules.kind}/"):
        article = "a video" if rules.kind == "video" else f"an {rules.kind}"
        raise BadMedia(f"a data: address has to say that it is {article}, not {kind[:50]!r}")
    if len(text) // 4 * 3 > rules.max_bytes:
        raise _too_large(rules.max_bytes)
    text = text.rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadMedia("its data is not base64") from None


def _too_large(max_bytes: int) -> BadMedia:
    return BadMedia(f"it is larger than {max_bytes:,} bytes")


# --- on this machine ------------------------------------------------------------------------------


def _local(url: str, rules: MediaRules) -> bytes:
    """A file below one of the roots, symbolic links followed before that is judged."""
    parts = _split(url)
    if parts.netloc not in ("", "localhost"):
        raise BadMedia("a file: address cannot name another machine")
    refused = BadMedia("files of the gateway's machine cannot be read from there")
    try:
        path = Path(unquote(parts.path)).resolve(strict=True)
        if not any(path.is_relative_to(root.resolve()) for root in rules.roots):
            raise refused
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            data = file.read(rules.max_bytes + 1)
    except (OSError, ValueError, RuntimeError):
        # The same words whatever is there: else anybody could ask which files exist.
        raise refused from None
    if len(data) > rules.max_bytes:
        raise _too_large(rules.max_bytes)
    return data


# --- on the web -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Web:
    rules: MediaRules
    backend: httpcore.AsyncNetworkBackend = field(default_factory=httpcore.AnyIOBackend)

    async def get(self, url: str) -> bytes:
        """The body behind `url` and up to three redirects."""
        guard = Guarded(self.backend, self.rules)
        for _ in range(MAX_REDIRECTS + 1):
            _check_web(url)
            # A pool for each hop, so that no connection outlives the look at its address.
            async with httpcore.AsyncConnectionPool(
                ssl_context=self.rules.tls, network_backend=guard
            ) as pool:
                try:
                    found = await self._hop(pool, url)
                except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
                    raise BadMedia("its server cannot be reached, or breaks off") from None
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise BadMedia(f"its address leads through more than {MAX_REDIRECTS} redirects")

    async def _hop(self, pool: httpcore.AsyncConnectionPool, url: str) -> bytes | str:
        """The body, or where a redirect leads."""
        kind = self.rules.kind
        headers = [("accept", f"{kind}/*"), ("accept-encoding", "identity"), ("host", _host(url))]
        async with pool.stream("GET", url.encode("ascii"), headers=headers) as response:
            if response.status in REDIRECTS:
                return _location(response.headers)
            if response.status != 200:
                raise BadMedia(f"its server answers {response.status}")
            chunks, total = [], 0
            async for chunk in response.aiter_stream():
                total += len(chunk)
                if total > self.rules.max_bytes:
                    raise _too_large(self.rules.max_bytes)
                chunks.append(chunk)
            return b"".join(chunks)


def _check_web(url: str) -> None:
    """Raises `BadMedia` for what only looks like a plain address of the web."""
    parts = _split(url)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise BadMedia("its address is not one of the web")
    if "@" in parts.netloc:
        raise BadMedia("its address holds a user name")
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise BadMedia("its address holds characters that have to be escaped")


def _host(url: str) -> str:
    return _split(url).netloc


def _location(headers: Iterable[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name.lower() == b"location":
            return value.decode("latin-1")
    raise BadMedia("its server redirects to nowhere")


class Guarded(httpcore.AsyncNetworkBackend):
    """Connects to the very addresses that it has looked at, and to no others."""

    def __init__(self, backend: httpcore.AsyncNetworkBackend, rules: MediaRules) -> None:
        self._backend = backend
        self._rules = rules

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **options: Any
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._rules.resolve(host, port)
        except (OSError, UnicodeError):
            raise BadMedia("the name of its server cannot be resolved") from None
        if not addresses or not all(map(self._rules.allows, addresses)):
            raise BadMedia("its server is not on the public internet")
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._backend.connect_tcp(address, port, *args, **options)
        return await self._backend.connect_tcp(addresses[-1], port, *args, **options)

    async def connect_unix_socket(
        self, path: str, *args: Any, **options: Any
    ) -> httpcore.AsyncNetworkStream:
        raise BadMedia("its server is not on the public internet")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)
