"""`POST /v1/audio/speech`: a text in, a file of speech out while it is made, as OpenAI has it.

With `stream_format: "sse"` the same bytes come as events: `speech.audio.delta` with a piece in
base64, then one `speech.audio.done`. `GET /v1/audio/voices` says which voices there are, without
loading anything.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, assert_never
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.decode import BodyDecoder
from gateway.api.dialect import Decoded, Defaults
from gateway.api.errors import openai_error
from gateway.api.service_fields import ServiceFields, wish
from gateway.api.sse import COMMENT, respond
from gateway.errors import GatewayError, InvalidRequest, Unavailable
from gateway.registry.find import Model
from gateway.registry.voices import voices_in
from gateway.residency import Phase
from gateway.router import Router, served_by
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.call import CallFailed, CallItem, ClientLeft, Granted
from gateway.supervisor.supervisor import Supervisor
from gateway.threads import in_thread

MAX_INPUT_CHARACTERS = 16_384
"""About 20 minutes of speech. OpenAI's own bound is 4,096."""

MAX_INSTRUCTIONS_CHARACTERS = 4096

LOOK_S = 10.0
"""How long a disk may take to wake up."""

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

MEDIA_TYPES: dict[str, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class VoiceId(msgspec.Struct, frozen=True):
    id: _Name


class SpeechRequest(ServiceFields, frozen=True, kw_only=True):
    """What is read of a request; unknown fields are ignored. `language` is an extension."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: Annotated[str, Meta(min_length=1, max_length=MAX_INPUT_CHARACTERS)]
    voice: _Name | VoiceId | None = None
    response_format: AudioFormat | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] | None = None
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS_CHARACTERS)] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    language: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


_decoder = BodyDecoder(SpeechRequest)


def decode(body: bytes) -> Decoded:
    """The neutral request. Raises `InvalidRequest`, naming the field."""
    request = _decoder.decode(body)
    if not request.input.strip():
        raise InvalidRequest("input: there is nothing in it to speak", param="input")
    format: AudioFormat = request.response_format or "mp3"
    voice = request.voice.id if isinstance(request.voice, VoiceId) else request.voice
    asked = wire.Speak(
        id=0,
        text=request.input,
        voice=voice,
        speed=1.0 if request.speed is None else request.speed,
        language=request.language,
        format=format,
        instructions=request.instructions or None,
    )
    events = request.stream_format == "sse"
    return Decoded(
        model=request.model,
        stream=events,
        include_usage=events,
        make=partial(_speak, asked),
        timeout_s=request.timeout,
        raw=None if events else MEDIA_TYPES[format],
        wish=wish(request),
    )


def _speak(asked: wire.Speak, call_id: int, defaults: Defaults) -> wire.Speak:
    return msgspec.structs.replace(asked, id=call_id)


class SpeechEvents:
    """Call items to the events of OpenAI's speech stream."""

    def __init__(self, decoded: Decoded) -> None:
        self._decoded = decoded

    def heartbeat(self) -> bytes:
        return COMMENT

    def frames(self, items: Sequence[CallItem]) -> list[bytes]:
        frames: list[bytes] = []
        for item in items:
            match item:
                case wire.Bytes():
                    audio = base64.b64encode(item.data).decode("ascii")
                    frames.append(_event({"type": "speech.audio.delta", "audio": audio}))
                case wire.Finished():
                    usage = _usage(item.usage)
                    frames.append(_event({"type": "speech.audio.done", "usage": usage}))
                case Phase() | Granted() | ClientLeft() | CallFailed():
                    pass  # these have no event, or end the stream elsewhere
                case wire.Started() | wire.PromptProgress() | wire.ChoiceFinished():
                    pass  # nothing of these is in a file
                case (
                    wire.TextDelta()
                    | wire.ReasoningDelta()
                    | wire.ToolCallStart()
                    | wire.ToolCallArguments()
                    | wire.Scores()
                    | wire.Segment()
                    | wire.Transcript()
                ):
                    pass  # no model that speaks sends these
                case _:
                    assert_never(item)
        return frames

    def error(self, error: GatewayError) -> bytes:
        return _event({"type": "error", "error": openai_error(error)})


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def _usage(usage: wire.Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class Voices:
    """`GET /v1/audio/voices`, as an ASGI application.

    Owns the looks into folders: one for each at a time, because one on a volume that has gone ends
    when that is back.
    """

    def __init__(self, live: Live, supervisor: Supervisor) -> None:
        self._live = live
        self._supervisor = supervisor
        self._looks: dict[Path, asyncio.Future[tuple[str, ...]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        router = access_of(scope).router(self._live.now.router)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("model", [])
        model = router.resolve(asked[0] if asked else _only_speaker(router), "speech")
        scope["state"]["model"] = model.entry.name
        names = await self._voices(model)
        body = {
            "object": "list",
            "model": model.entry.name,
            "voices": names,
            "data": [{"id": name, "object": "voice", "name": name} for name in names],
        }
        await respond(send, 200, msgspec.json.encode(body))

    async def _voices(self, model: Model) -> tuple[str, ...]:
        """What the loaded model says; else what its folder shows, which can be less.

        Raises `Unavailable` for a folder that cannot be read in time.
        """
        slot = self._supervisor.slots[served_by(model)]
        if slot.ready is not None:
            return slot.ready.voices
        if model.path is None:
            return ()
        look = self._looks.get(model.path)
        if look is None:
            look = self._looks[model.path] = asyncio.ensure_future(in_thread(voices_in, model.path))
            look.add_done_callback(partial(self._looked, model.path))
        try:
            async with asyncio.timeout(LOOK_S):
                return await asyncio.shield(look)
        except TimeoutError:
            raise Unavailable(
                f"the folder of model {model.entry.name!r} could not be read within {LOOK_S:g} s; "
                "its volume sleeps, or has gone",
                retry_after_s=LOOK_S,
            ) from None

    def _looked(self, path: Path, look: asyncio.Future[tuple[str, ...]]) -> None:
        del self._looks[path]


def _only_speaker(router: Router) -> str:
    """The one speech model there is. Raises `InvalidRequest` when there are none, or several."""
    names = [model.entry.name for model in router.models if model.entry.kind == "speech"]
    if len(names) == 1:
        return names[0]
    known = f"the speech models are {', '.join(names)}" if names else "there is no speech model"
    raise InvalidRequest(f"model: this query parameter is required; {known}", param="model")
