"""A form with a file: read under a cap, the file written to disk as it comes.

Never more of it than a few pieces is in memory. Whoever gets the file removes it when its request
ends; until then, whatever happens, it is removed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from gateway.api.body import READ_TIMEOUT_S, content_length
from gateway.api.forms import FILE, FormParser, boundary_of
from gateway.errors import BodyTooLarge, ClientGone, InvalidRequest, QueueFull, Unavailable
from gateway.registry.schema import Server
from gateway.security.containers import NotMedia, look_inside
from gateway.security.guard import header
from gateway.security.media import FILE_MODE, SUFFIX, MediaFile
from gateway.server import Receive, Scope

MAX_UPLOADS = 32
"""At the same time, over all routes."""

UPLOAD_TIMEOUT_S = 3600.0
RETRY_S = 10.0
HEAD_BYTES = 32
FLUSH_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Form:
    """Its fields, each with its values in order, and the file at hand."""

    fields: Mapping[str, list[str]]
    file: MediaFile


class Uploads:
    """Keeps files in `folder`; without one it refuses them."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._running = 0

    async def read(self, scope: Scope, receive: Receive, server: Server) -> Form:
        """The whole form. On failure nothing is left on disk.

        Raises `BodyTooLarge`, `ClientGone`, `InvalidRequest`, `Unavailable`. Until all of it is
        read, the request's state says that something is `unread`.
        """
        scope["state"]["unread"] = True
        cap = server.max_upload_mb * 2**20
        if (content_length(scope) or 0) > cap:
            raise _too_large(cap)
        parser = FormParser(boundary_of(header(scope, b"content-type")))
        if self._folder is None:
            raise Unavailable(
                f"{FILE}: the gateway has no folder to keep files in; its log says why"
            )
        if self._running >= MAX_UPLOADS:
            raise QueueFull(
                f"{MAX_UPLOADS} uploads are under way, which is the most at the same time",
                retry_after_s=RETRY_S,
            )
        spool = Spool(self._folder)
        self._running += 1
        try:
            await self._receive(scope["state"], receive, cap, parser, spool)
            return Form(parser.fields, _checked(parser, spool))
        except OSError as error:
            spool.discard()
            raise Unavailable(
                f"{FILE}: the gateway cannot keep the file ({error.strerror or error}); its "
                "operator has to free space",
                retry_after_s=RETRY_S,
            ) from error
        except BaseException:
            spool.discard()
            raise
        finally:
            self._running -= 1

    async def _receive(
        self,
        state: MutableMapping[str, Any],
        receive: Receive,
        cap: int,
        parser: FormParser,
        spool: Spool,
    ) -> None:
        total, more = 0, True
        until = asyncio.get_running_loop().time() + UPLOAD_TIMEOUT_S
        while more:
            message = await _next_message(receive, until)
            chunk: bytes = message.get("body", b"")
            more = state["unread"] = message.get("more_body", False)
            total += len(chunk)
            if total > cap:
                raise _too_large(cap)
            parser.feed(chunk)
            if parser.pending >= FLUSH_BYTES or not more:
                await spool.write(parser.take())
        parser.finish()


async def _next_message(receive: Receive, until: float) -> MutableMapping[str, Any]:
    stalled = asyncio.get_running_loop().time() + READ_TIMEOUT_S
    try:
        async with asyncio.timeout_at(min(until, stalled)):
            message: MutableMapping[str, Any] = await receive()
    except TimeoutError:
        raise InvalidRequest(
            f"the upload stalled for {READ_TIMEOUT_S:g} s, or took longer than "
            f"{UPLOAD_TIMEOUT_S / 60:g} minutes"
        ) from None
    if message["type"] == "http.disconnect":
        raise ClientGone("the client left before its upload was complete")
    return message


def _checked(parser: FormParser, spool: Spool) -> MediaFile:
    """Closes the file. Raises `InvalidRequest` without a file, or for one that is no audio."""
    if not parser.has_file:
        raise InvalidRequest(f"{FILE}: this field is required", param=FILE)
    if not spool.size:
        raise InvalidRequest(f"{FILE}: the file is empty", param=FILE)
    try:
        return spool.finish(look_inside("audio", spool.head))
    except NotMedia as error:
        raise InvalidRequest(f"{FILE}: {error}", param=FILE) from None


class Spool:
    """One file on its way to disk. Threads write to it, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{uuid4().hex}{SUFFIX}"
        self._descriptor: int | None = None
        self._digest = hashlib.sha256()
        self._writing: asyncio.Future[None] | None = None
        self.size = 0
        self.head = b""

    async def write(self, data: bytes) -> None:
        """Raises `OSError`."""
        if data:
            self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, data))
            await asyncio.shield(self._writing)

    def finish(self, kind: str) -> MediaFile:
        """Nothing more comes: the file is its owner's from now on."""
        self._close()
        return MediaFile(self._path, kind, self.size, self._digest.hexdigest())

    def discard(self) -> None:
        """Removes it; a thread cannot be cancelled, so what it still writes goes first."""
        if self._writing is not None and not self._writing.done():
            self._writing.add_done_callback(self._discard_after)
            return
        self._close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _discard_after(self, writing: asyncio.Future[None]) -> None:
        if not writing.cancelled():
            writing.exception()  # nobody else asks, and what was written goes anyway
        self.discard()

    def _write(self, data: bytes) -> None:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, FILE_MODE)
            self.head = data[:HEAD_BYTES]
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._digest.update(data)
        self.size += len(data)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _too_large(cap: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the upload is larger than the limit of {cap / 2**20:g} MiB "
        "(server.max_upload_mb in the registry)",
        param=FILE,
    )
