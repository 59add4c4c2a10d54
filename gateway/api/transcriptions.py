"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`, from a form to the neutral request.

Field rules are those of the OpenAI API reference. An empty field is one that is not given. What
would change the answer and cannot be honoured is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from engines import wire
from gateway.api.decode import from_texts
from gateway.api.dialect import Decoded, Defaults
from gateway.api.errors import OPENAI, ErrorForm
from gateway.api.forms import FILE, single_values
from gateway.api.service_fields import ServiceFields, wish
from gateway.api.uploads import Form
from gateway.errors import GatewayError, InvalidRequest, Unsupported

Layout = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["word", "segment"]

MEDIA_TYPES: dict[Layout, bytes] = {
    "json": b"application/json",
    "text": b"text/plain; charset=utf-8",
    "srt": b"application/x-subrip; charset=utf-8",
    "verbose_json": b"application/json",
    "vtt": b"text/vtt; charset=utf-8",
}
STREAMED: tuple[Layout, ...] = ("json", "text")

_LISTS = frozenset(
    {
        *("timestamp_granularities", "include", "languages", "keywords"),
        *("known_speaker_names", "known_speaker_references"),
    }
)


class TranscriptionRequest(ServiceFields, frozen=True, kw_only=True):
    """What is read of a form; unknown fields are ignored."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    language: Annotated[str, Meta(min_length=2, max_length=40)] | None = None
    prompt: str | None = None
    response_format: Layout | Literal["diarized_json"] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    timestamp_granularities: list[Granularity] | None = None
    stream: bool | None = None
    # Known and not served: these values pass, anything else is refused by name.
    chunking_strategy: Any = None
    include: Any = None
    languages: Any = None
    keywords: Any = None
    known_speaker_names: Any = None
    known_speaker_references: Any = None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "chunking_strategy": ("auto",),
    **dict.fromkeys(sorted(_LISTS - {"timestamp_granularities"}), ([],)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTranscription(Decoded):
    """`granularities` are the times that a `verbose_json` tells."""

    layout: Layout = "json"
    translate: bool = False
    granularities: tuple[Granularity, ...] = ("segment",)


def transcription(form: Form) -> DecodedTranscription:
    """Raises `InvalidRequest`, naming the field."""
    return _decode(form, translate=False)


def translation(form: Form) -> DecodedTranscription:
    """Raises `InvalidRequest`, naming the field."""
    return _decode(form, translate=True)


def _decode(form: Form, *, translate: bool) -> DecodedTranscription:
    request = from_texts(single_values(form.fields, _LISTS), TranscriptionRequest)
    for field, neutral in _NEUTRAL.items():
        value = getattr(request, field)
        if value is not None and value not in neutral:
            raise Unsupported(f"{field}: this is not served; leave it out", param=field)
    layout = _layout(request)
    return DecodedTranscription(
        model=request.model,
        stream=bool(request.stream),
        include_usage=False,
        make=_make(request, form, translate),
        uploads=(form.file,),
        answer_type=MEDIA_TYPES[layout],
        timeout_s=request.timeout,
        wish=wish(request),
        layout=layout,
        translate=translate,
        granularities=tuple(request.timestamp_granularities or ("segment",)),
    )


def _layout(request: TranscriptionRequest) -> Layout:
    """The format of the answer, which other fields have to go with."""
    layout = request.response_format or "json"
    if layout == "diarized_json":
        raise Unsupported(
            "response_format: no model here tells speakers apart", param="response_format"
        )
    if request.timestamp_granularities and layout != "verbose_json":
        raise InvalidRequest(
            "timestamp_granularities: needs response_format to be verbose_json",
            param="timestamp_granularities",
        )
    if request.stream and layout not in STREAMED:
        raise Unsupported(
            f"stream: a {layout} is not streamed; use response_format json or text", param="stream"
        )
    return layout


def _make(
    request: TranscriptionRequest, form: Form, translate: bool
) -> Callable[[int, Defaults], wire.Transcribe]:
    file = form.file
    audio = wire.Media("audio", str(file.path), file.kind, file.size, file.sha256)
    words = "word" in (request.timestamp_granularities or ())

    def make(call_id: int, defaults: Defaults) -> wire.Transcribe:
        temperature = request.temperature
        if temperature is None:
            temperature = min(1.0, defaults.temperature or 0.0)
        return wire.Transcribe(
            id=call_id,
            audio=audio,
            language=request.language,
            translate=translate,
            prompt=request.prompt,
            temperature=temperature,
            words=words,
        )

    return make


# --- errors ---------------------------------------------------------------------------------------


def named(error: GatewayError) -> GatewayError:
    """An engine names the field at fault in its sentence alone; here it is told as `param` too."""
    if error.param is None and isinstance(error, InvalidRequest):
        field = error.message.partition(":")[0]
        if field in (FILE, "language"):
            error.param = field
    return error


ERRORS = ErrorForm(OPENAI.status, lambda error, request_id: OPENAI.body(named(error), request_id))
