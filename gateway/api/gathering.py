"""What a request's media need before its call can be opened: files, and texts of what is heard.

A model that does not hear gets what was said as text, when its entry names a transcription model:
that one is called first, under a lease of its own, so the two never wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial

from engines import wire
from gateway.api.deadline import Deadline
from gateway.api.dialect import Decoded
from gateway.api.media import Gathered, Media, refuse_media, remove, taken_by, told, unless_ended
from gateway.api.requests import cancellable
from gateway.errors import GatewayError
from gateway.registry.find import Model
from gateway.router import served_by
from gateway.served import Served
from gateway.server import Receive, Scope
from gateway.supervisor.call import CallFailed
from gateway.supervisor.setup import Wish
from gateway.supervisor.supervisor import Supervisor

LOOK_AGAIN_S = 60.0
"""The supervisor ends every call; this only bounds each single wait for it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request is answered, its model by the registry of its time, and until when."""

    model: Model
    served: Served
    deadline: Deadline


class Gathering:
    """Brings media to files, and audio to text where the model needs that."""

    def __init__(self, media: Media, supervisor: Supervisor) -> None:
        self._media = media
        self._supervisor = supervisor

    async def gather(
        self, decoded: Decoded, place: Place, scope: Scope, receive: Receive
    ) -> Gathered:
        """The media of a request, whoever gets them removes their files; on failure none is left.

        The request can be cancelled meanwhile. Raises `InvalidRequest`, `Unsupported`,
        `Unavailable`, `ClientGone`, `Cancelled`, `RequestTimeout`, and whatever ends a
        transcription.
        """
        refs = decoded.media
        if not refs:
            return Gathered()
        heard = self._transcribed(decoded, place)
        texts: dict[int, str] = {}
        with contextlib.ExitStack() as unwanted:
            ended = unwanted.enter_context(_cancellable(scope))
            kept = unwanted.enter_context(contextlib.ExitStack())
            async with _in_time(place.deadline):
                files = await self._media.fetch(refs, place.served.server, receive, ended)
                kept.callback(remove, files)
                if heard is not None:
                    audio = {
                        index: told("audio", files[index])
                        for index, ref in enumerate(refs)
                        if ref.kind == "audio"
                    }
                    work = self._transcribe(audio, heard, decoded, texts)
                    await unless_ended(work, receive, ended, None)
            kept.pop_all()
        return Gathered(refs, files, texts)

    def _transcribed(self, decoded: Decoded, place: Place) -> Model | None:
        """The model that is to hear for this one; None where it need not.

        Raises `Unsupported` for media that the model cannot take in any way.
        """
        model = place.model
        slot = self._supervisor.slots.get(served_by(model))  # a reload may have removed it
        ready = slot.ready if slot is not None else None
        takes = taken_by(model, ready)
        helper = model.entry.audio_transcriber
        asked = any(ref.kind == "audio" for ref in decoded.media)
        if not asked or "audio" in takes:
            helper = None
        # Whether a vision model hears is not known before it is loaded; then it says so itself.
        unknown = model.entry.kind == "vision" and ready is None
        refuse_media(
            decoded.media,
            model.entry.name,
            {*takes, "audio"} if helper is not None or unknown else takes,
        )
        return place.served.router.resolve(helper, "transcription") if helper else None

    async def _transcribe(
        self,
        media: dict[int, wire.Media],
        model: Model,
        decoded: Decoded,
        texts: dict[int, str],
    ) -> None:
        for index, audio in media.items():
            texts[index] = await self._text(audio, model, decoded.wish)

    async def _text(self, audio: wire.Media, model: Model, wish: Wish) -> str:
        """What is said in it. Raises what ends the call."""
        loop = asyncio.get_running_loop()
        call = self._supervisor.open(
            served_by(model), lambda call_id: wire.Transcribe(call_id, audio), wish
        )
        text = ""
        try:
            while True:
                for item in await call.batch(loop.time() + LOOK_AGAIN_S):
                    match item:
                        case wire.Transcript():
                            text = item.text.strip()
                        case CallFailed(error):
                            raise error
                        case wire.Finished():
                            return text
                        case _:
                            pass  # its way to the lease, and segments of what comes whole
        finally:
            self._supervisor.close(call)


@contextlib.contextmanager
def _cancellable(scope: Scope) -> Iterator[asyncio.Future[GatewayError]]:
    """Within it, a request that is cancelled from outside has its error in the future."""
    ended: asyncio.Future[GatewayError] = asyncio.get_running_loop().create_future()
    cancellable(scope, partial(_end, ended))
    try:
        yield ended
    finally:
        cancellable(scope, None)


@contextlib.asynccontextmanager
async def _in_time(deadline: Deadline) -> AsyncIterator[None]:
    """What is done within it ends at the deadline. Raises `RequestTimeout`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(deadline.at if deadline.timeout_s else None):
            yield
    except TimeoutError:
        deadline.check(loop.time())
        raise


def _end(ended: asyncio.Future[GatewayError], error: GatewayError) -> None:
    if not ended.done():
        ended.set_result(error)
