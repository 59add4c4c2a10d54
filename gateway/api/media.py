"""Media of a request: noted while it is decoded, brought to files before its call is opened.

`Attachments` owns what one request names, in order; in its place in a content stands a part.
`Media` owns the folder of the files: whoever gets one removes it when its request ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.parts import Content, Part, joined, parts_of, text_part
from gateway.api.sse import watch_disconnect
from gateway.api.uploads import Uploads
from gateway.errors import ClientGone, GatewayError, InvalidRequest, Unavailable, Unsupported
from gateway.registry.find import Model
from gateway.registry.schema import Server
from gateway.security.containers import MediaKind
from gateway.security.media import MediaFile, MediaRules, fetch_media
from gateway.server import Receive

MOST: Mapping[MediaKind, int] = {"image": 16, "video": 4, "audio": 8}
"""Media of each kind in one request."""

MOST_BYTES: Mapping[MediaKind, int] = {
    "image": 20 * 2**20,
    "video": 64 * 2**20,
    "audio": 32 * 2**20,
}
"""Of one file."""

TOGETHER_BYTES = 128 * 2**20
"""Of all files of one request."""

TOGETHER_S = 30.0
"""All media of one request have to be there after so long."""

MAX_FETCHES = 16
"""Images that are in memory at the same time, of all requests together."""

MAX_LARGE_FETCHES = 4
"""The same for videos and audio files."""

RETRY_S = 10.0


VideoRate = Annotated[float, Meta(gt=0, le=60, description="frames a second of a video")]
VideoLength = Annotated[int, Meta(ge=1, le=768, description="most frames of a video")]


class InputAudio(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's form of audio in a request. `data` is base64; what it is, its first bytes say."""

    data: str
    format: Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9.+-]*$")]

    @property
    def url(self) -> str:
        return f"data:audio/{self.format};base64,{self.data}"


@dataclass(frozen=True, slots=True)
class MediaRef:
    """A file that a request names; `param` is the part that does."""

    url: str
    param: str
    kind: MediaKind = "image"


class Attachments:
    """The media of one request so far."""

    def __init__(self) -> None:
        self._refs: list[MediaRef] = []

    @property
    def refs(self) -> tuple[MediaRef, ...]:
        return tuple(self._refs)

    def add(self, url: str | None, param: str, kind: MediaKind = "image") -> Part:
        """What stands in its place. Raises `InvalidRequest` without an address, or for too many."""
        article = "a video" if kind == "video" else f"an {kind}"
        if url is None:
            raise InvalidRequest(f"{param}: {article} needs an address or its data", param=param)
        if sum(ref.kind == kind for ref in self._refs) >= MOST[kind]:
            noun = "audio files" if kind == "audio" else f"{kind}s"
            raise InvalidRequest(
                f"{param}: a request can hold {MOST[kind]} {noun}, this is one more", param=param
            )
        self._refs.append(MediaRef(url, param, kind))
        return {"type": kind, "media": len(self._refs) - 1}


def taken_by(model: Model, ready: wire.Ready | None) -> tuple[wire.Modality, ...]:
    """What requests to a model may hold: what it says once it is loaded, else what its kind says.

    Whether a vision model hears is known by itself alone.
    """
    if model.entry.kind != "vision":
        return ("text",)
    return ready.modalities if ready is not None else ("text", "image", "video")


def refuse_media(refs: Sequence[MediaRef], model: str, takes: Collection[str]) -> None:
    """Raises `Unsupported` for the first of a request's media that its model does not take."""
    for ref in refs:
        if ref.kind in takes:
            continue
        if ref.kind == "audio":
            advice = "set audio_transcriber in its entry to the name of a transcription model"
        else:
            advice = f"leave it out, or ask a model that takes {ref.kind}s"
        raise Unsupported(
            f"{ref.param}: the model {model!r} takes no {ref.kind}; {advice}", param=ref.param
        )


@dataclass(frozen=True, slots=True)
class Gathered:
    """The media of a request at hand: files in the order of its parts.

    `texts` are what was said in some of them, by index: those go into the prompt as text.
    """

    refs: tuple[MediaRef, ...] = ()
    files: tuple[MediaFile, ...] = ()
    texts: Mapping[int, str] = field(default_factory=dict)

    def into(self, request: wire.Request) -> wire.Request:
        """The request with its media, its messages' parts pointing at them."""
        if not self.files or not isinstance(request, wire.Generate):
            return request
        media, messages = self._placed(request.messages)
        return msgspec.structs.replace(request, messages=messages, media=media)

    def into_ask(self, question: wire.Ask) -> wire.Ask:
        """The same for a question about a prompt."""
        if not self.files or not isinstance(question, wire.CountTokens):
            return question
        media, messages = self._placed(question.messages)
        return msgspec.structs.replace(question, messages=messages, media=media)

    def _placed(
        self, messages: Sequence[Part]
    ) -> tuple[tuple[wire.Media, ...], list[dict[str, Any]]]:
        kept = [index for index in range(len(self.files)) if index not in self.texts]
        places = {index: place for place, index in enumerate(kept)}
        media = tuple(told(self.refs[index].kind, self.files[index]) for index in kept)
        return media, [
            {**message, "content": self._content(message["content"], places)}
            if isinstance(message.get("content"), list)
            else message
            for message in messages
        ]

    def _content(self, content: Content, places: Mapping[int, int]) -> Content:
        return joined([self._part(part, places)] for part in parts_of(content))

    def _part(self, part: Part, places: Mapping[int, int]) -> Part:
        if part["type"] == "text":
            return part
        index = part["media"]
        return {**part, "media": places[index]} if index in places else text_part(self.texts[index])


def told(kind: MediaKind, file: MediaFile) -> wire.Media:
    """The file as engines are told of it."""
    return wire.Media(kind, str(file.path), file.kind, file.size, file.sha256)


class Media:
    """Fetches media to files in `folder`, a few at a time; without a folder it refuses them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.uploads = Uploads(folder)
        self._slots = asyncio.Semaphore(MAX_FETCHES)
        self._large_slots = asyncio.Semaphore(MAX_LARGE_FETCHES)

    async def fetch(
        self,
        refs: Sequence[MediaRef],
        server: Server,
        receive: Receive,
        ended: asyncio.Future[GatewayError] | None = None,
    ) -> tuple[MediaFile, ...]:
        """Every file, in order; on failure none is left.

        Raises `InvalidRequest` for what cannot be had, `ClientGone`, `Unavailable`, and the error
        that `ended` gets meanwhile.
        """
        if not refs:
            return ()
        if self._folder is None:
            raise Unavailable(
                f"{refs[0].param}: the gateway has no folder to keep media in; its log says why"
            )
        rules = MediaRules(self._folder, roots=tuple(map(Path, server.media_roots)))
        files: list[MediaFile] = []
        with contextlib.ExitStack() as unwanted:
            unwanted.callback(remove, files)
            await unless_ended(self._fetch(refs, rules, files), receive, ended, TOGETHER_S)
            if len(files) < len(refs):
                late = refs[len(files)].param
                raise InvalidRequest(
                    f"{late}: the media of the request took longer than {TOGETHER_S:g} s",
                    param=late,
                )
            unwanted.pop_all()
        return tuple(files)

    async def _fetch(
        self, refs: Sequence[MediaRef], rules: MediaRules, files: list[MediaFile]
    ) -> None:
        left = TOGETHER_BYTES
        for ref in refs:
            its = replace(rules, kind=ref.kind, max_bytes=MOST_BYTES[ref.kind])
            try:
                async with self._slots if ref.kind == "image" else self._large_slots:
                    files.append(await fetch_media(ref.url, its, ref.param))
            except OSError as error:
                raise Unavailable(
                    f"{ref.param}: the gateway cannot keep the {ref.kind} "
                    f"({error.strerror or error}); its operator has to free space",
                    retry_after_s=RETRY_S,
                ) from error
            left -= files[-1].size
            if left < 0:
                raise InvalidRequest(
                    f"{ref.param}: the media of the request are larger than "
                    f"{TOGETHER_BYTES:,} bytes together",
                    param=ref.param,
                )


def remove(files: Iterable[MediaFile]) -> None:
    """What cannot be removed now, the next start of the gateway removes."""
    for file in files:
        with contextlib.suppress(OSError):
            file.remove()


async def unless_ended(
    work: Coroutine[Any, Any, None],
    receive: Receive,
    ended: asyncio.Future[GatewayError] | None,
    timeout_s: float | None,
) -> None:
    """Gives `work` its time, None where it ends by itself; nothing of it goes on after that.

    Raises as it does, `ClientGone`, and the error that `ended` gets.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(watch_disconnect(receive, lambda: None))
    others = () if ended is None else (ended,)
    try:
        done, _ = await asyncio.wait(
            (working, leaving, *others),
            timeout=timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if leaving in done:
        raise ClientGone("the client left while its media were brought here")
    if ended is not None and ended in done:
        raise ended.result()
    if working in done:
        working.result()
