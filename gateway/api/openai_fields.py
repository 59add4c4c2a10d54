"""What chat completions and text completions have in common in the OpenAI dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.decode import check_plain
from gateway.api.formats import JSON, TEXT, named_format
from gateway.api.sampling_fields import SamplingFields
from gateway.errors import InvalidRequest, Unsupported

MAX_CHOICES = 64
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024

ModelName = Annotated[str, Meta(min_length=1, max_length=512)]
MaxTokens = Annotated[int, Meta(ge=1, le=10**9)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    """`strict` and the name change nothing: a schema is always enforced."""

    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`schema` beside `json_object` is llama.cpp's way to say json_schema."""

    type: str
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


Regex = Annotated[str, Meta(min_length=1, max_length=65_536)]
Grammar = Annotated[str, Meta(min_length=1, max_length=131_072)]
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1, max_length=1024)
]


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's later names for the `guided_*` fields; exactly one is given."""

    json: dict[str, Any] | str | None = None
    regex: Regex | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    structural_tag: Any = None


class OpenAIFields(SamplingFields, frozen=True, kw_only=True):
    """Null means not given; unknown fields are ignored.

    The `guided_*` fields are those of vLLM: a JSON schema, a regular expression, a grammar in Lark
    or GBNF, or texts to choose from.
    """

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Regex | None = None
    guided_grammar: Grammar | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None
    # Known and not served: these values pass, anything else is refused by name.
    min_tokens: Any = None
    ignore_eos: Any = None
    stop_token_ids: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


_OTHERS: dict[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
}


def refuse_others(request: OpenAIFields, others: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuses what is known and not served; `others` are fields of a dialect's own.

    Null and the values listed with a field pass. Raises `Unsupported`, naming the field.
    """
    for field, neutral in (_OTHERS | dict(others)).items():
        value = getattr(request, field)
        if value is not None and value not in neutral:
            raise Unsupported(f"{field}: this is not served; leave it out", param=field)


def stops(request: OpenAIFields) -> tuple[str, ...]:
    stop = request.stop
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def format_of(request: OpenAIFields) -> wire.Format:
    """Raises `InvalidRequest` for two formats at once, or for one that cannot travel."""
    formats = [
        (field, made)
        for field, made in (
            ("response_format", _response_format(request.response_format)),
            ("guided_json", _json("guided_json", request.guided_json)),
            ("guided_regex", _grammar("regex", request.guided_regex)),
            ("guided_grammar", _grammar("lark", request.guided_grammar)),
            ("guided_choice", _choice(request.guided_choice)),
            *_structured(request.structured_outputs),
        )
        if made != TEXT
    ]
    if len(formats) > 1:
        (first, _), (second, _), *_ = formats
        raise InvalidRequest(f"{second}: cannot be combined with {first}", param=second)
    return formats[0][1] if formats else TEXT


def _structured(given: StructuredOutputs | None) -> list[tuple[str, wire.Format]]:
    if given is None:
        return []
    field = "structured_outputs"
    if given.structural_tag is not None:
        path = f"{field}.structural_tag"
        raise Unsupported(f"{path}: this is not served; force the tool instead", param=path)
    return [
        (f"{field}.json", _json(f"{field}.json", given.json)),
        (f"{field}.regex", _grammar("regex", given.regex)),
        (f"{field}.choice", _choice(given.choice)),
        (f"{field}.grammar", _grammar("lark", given.grammar)),
        (f"{field}.json_object", JSON if given.json_object else TEXT),
    ]


def _response_format(given: ResponseFormat | None) -> wire.Format:
    if given is None:
        return TEXT
    if given.type == "json_schema" and given.json_schema is None:
        path = "response_format.json_schema"
        raise InvalidRequest(f"{path}: this field is required", param=path)
    if given.type == "json_object" and given.schema:
        return _json("response_format.schema", given.schema)
    schema = given.json_schema.schema if given.json_schema else None
    return named_format(
        given.type, schema, "response_format.type", "response_format.json_schema.schema"
    )


def _json(path: str, schema: dict[str, Any] | str | None) -> wire.Format:
    """A schema, perhaps as JSON text."""
    if schema is None:
        return TEXT
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError):
            raise InvalidRequest(f"{path}: is not a JSON schema", param=path) from None
    check_plain(schema, path)
    return wire.Format("json_schema", schema) if schema else JSON


def _grammar(kind: Any, grammar: str | None) -> wire.Format:
    return TEXT if grammar is None else wire.Format(kind, grammar)


def _choice(texts: list[str] | None) -> wire.Format:
    if texts is None:
        return TEXT
    quoted = (msgspec.json.encode(text).decode() for text in texts)
    return wire.Format("lark", "start: " + " | ".join(quoted))
