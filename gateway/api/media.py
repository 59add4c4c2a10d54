"""Images of a request: noted while it is decoded, brought to files before its call is opened.

`Images` owns what one request names, in order; in its place in the text stands `PLACEHOLDER`.
`Media` owns the folder of the files: whoever gets one removes it when its request ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.api.sse import watch_disconnect
from gateway.errors import ClientGone, InvalidRequest, Unavailable, Unsupported
from gateway.registry.schema import Server
from gateway.security.media import MediaFile, MediaRules, fetch_media
from gateway.server import Receive

MAX_IMAGES = 16
PLACEHOLDER = "[image]"

TOGETHER_S = 30.0
"""All images of one request have to be there after so long."""

MAX_FETCHES = 16
"""Images that are in memory at the same time, of all requests together."""

RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class MediaRef:
    """An image that a request names; `param` is the part that does."""

    url: str
    param: str


class Images:
    """The images of one request so far."""

    def __init__(self) -> None:
        self._refs: list[MediaRef] = []

    @property
    def refs(self) -> tuple[MediaRef, ...]:
        return tuple(self._refs)

    def add(self, url: str | None, param: str) -> str:
        """What stands in its place. Raises `InvalidRequest` without an address, or for too many."""
        if url is None:
            raise InvalidRequest(f"{param}: an image needs an address or its data", param=param)
        if len(self._refs) >= MAX_IMAGES:
            raise InvalidRequest(
                f"{param}: a request can hold {MAX_IMAGES} images, this is one more", param=param
            )
        self._refs.append(MediaRef(url, param))
        return PLACEHOLDER


def refuse_images(refs: Sequence[MediaRef], model: str) -> None:
    """Raises `Unsupported` for the first image of a request to a model of text."""
    for ref in refs:
        raise Unsupported(
            f"{ref.param}: the model {model!r} takes text alone and no image; leave it out, or "
            "ask a vision model",
            param=ref.param,
        )


class Media:
    """Fetches images to files in `folder`, a few at a time; without a folder it refuses them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._slots = asyncio.Semaphore(MAX_FETCHES)

    async def fetch(
        self, refs: Sequence[MediaRef], server: Server, receive: Receive
    ) -> tuple[MediaFile, ...]:
        """Every image, in order; on failure none is left.

        Raises `InvalidRequest` for an image that cannot be had, `ClientGone`, `Unavailable`.
        """
        if not refs:
            return ()
        if self._folder is None:
            raise Unavailable(
                f"{refs[0].param}: the gateway has no folder to keep images in; its log says why"
            )
        rules = MediaRules(self._folder, roots=tuple(map(Path, server.media_roots)))
        files: list[MediaFile] = []
        with contextlib.ExitStack() as unwanted:
            unwanted.callback(remove, files)
            await _unless_left(self._fetch(refs, rules, files), receive)
            if len(files) < len(refs):
                late = refs[len(files)].param
                raise InvalidRequest(
                    f"{late}: the images of the request took longer than {TOGETHER_S:g} s",
                    param=late,
                )
            unwanted.pop_all()
        return tuple(files)

    async def _fetch(
        self, refs: Sequence[MediaRef], rules: MediaRules, files: list[MediaFile]
    ) -> None:
        for ref in refs:
            try:
                async with self._slots:
                    files.append(await fetch_media(ref.url, rules, ref.param))
            except OSError as error:
                raise Unavailable(
                    f"{ref.param}: the gateway cannot keep the image "
                    f"({error.strerror or error}); its operator has to free space",
                    retry_after_s=RETRY_S,
                ) from error


def remove(files: Iterable[MediaFile]) -> None:
    """What cannot be removed now, the next start of the gateway removes."""
    for file in files:
        with contextlib.suppress(OSError):
            file.remove()


async def _unless_left(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Gives `work` its time; nothing of it goes on after that. Raises as it does, `ClientGone`."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(watch_disconnect(receive, lambda: None))
    try:
        done, _ = await asyncio.wait(
            (working, leaving), timeout=TOGETHER_S, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if leaving in done:
        raise ClientGone("the client left while its images were fetched")
    if working in done:
        working.result()
