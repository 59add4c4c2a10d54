"""What answers look like, as structs for the OpenAPI document alone: encoders write the JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Json = dict[str, Any]
Tokens = Annotated[int, Meta(ge=0)]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every shape; fields that are not listed may be there too."""


# --- errors ---------------------------------------------------------------------------------------


class OpenAIErrorDetail(_Shape, frozen=True, kw_only=True):
    """`code` says what happened, `param` which field of the body is at fault."""

    message: str
    type: Literal[
        "invalid_request_error",
        "permission_error",
        "rate_limit_error",
        "service_unavailable_error",
        "server_error",
    ]
    param: str | None
    code: str


class OpenAIError(_Shape, frozen=True, kw_only=True):
    """An error in OpenAI's form."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(_Shape, frozen=True, kw_only=True):
    """`code` says more than Anthropic's types do."""

    type: str
    message: str
    code: str


class AnthropicError(_Shape, frozen=True, kw_only=True):
    """An error in Anthropic's form: for its routes, and where `anthropic-version` is sent."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


# --- generating -----------------------------------------------------------------------------------


class Usage(_Shape, frozen=True, kw_only=True):
    prompt_tokens: Tokens
    completion_tokens: Tokens
    total_tokens: Tokens
    prompt_tokens_details: Json
    completion_tokens_details: Json


class AssistantMessage(_Shape, frozen=True, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[Json] | None = None


class ChatChoice(_Shape, frozen=True, kw_only=True):
    index: Tokens
    message: AssistantMessage
    logprobs: Json | None
    finish_reason: FinishReason


class ChatCompletion(_Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: Usage


class TextChoice(_Shape, frozen=True, kw_only=True):
    index: Tokens
    text: str
    logprobs: Json | None
    finish_reason: FinishReason


class TextCompletion(_Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[TextChoice]
    usage: Usage


class MessageUsage(_Shape, frozen=True, kw_only=True):
    input_tokens: Tokens
    output_tokens: Tokens


class Message(_Shape, frozen=True, kw_only=True):
    """An answer in Anthropic's form."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"] | None
    stop_sequence: str | None
    usage: MessageUsage


class Response(_Shape, frozen=True, kw_only=True):
    """An answer of the Responses API."""

    id: str
    object: Literal["response"]
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    error: Json | None
    incomplete_details: Json | None
    output: list[Json]
    usage: Json | None


class DeletedResponse(_Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(_Shape, frozen=True, kw_only=True):
    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class TokenCount(_Shape, frozen=True, kw_only=True):
    input_tokens: Tokens


class TokenList(_Shape, frozen=True, kw_only=True):
    tokens: list[Tokens]
    count: Tokens
    max_model_len: int | None


class Prompt(_Shape, frozen=True, kw_only=True):
    prompt: str


class EmbeddingsUsage(_Shape, frozen=True, kw_only=True):
    prompt_tokens: Tokens
    total_tokens: Tokens


class Embedding(_Shape, frozen=True, kw_only=True):
    """`embedding` is in base64 (little-endian float32) when the request asks for that."""

    object: Literal["embedding"]
    index: Tokens
    embedding: list[float] | str


class Embeddings(_Shape, frozen=True, kw_only=True):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


class RankedDocument(_Shape, frozen=True, kw_only=True):
    """`index` is the place in the request; `document` is there when it was asked for."""

    index: Tokens
    relevance_score: Annotated[float, Meta(ge=0, le=1)]
    document: Json | None = None


class Ranking(_Shape, frozen=True, kw_only=True):
    """The most relevant document comes first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: EmbeddingsUsage
    meta: Json


class VoiceList(_Shape, frozen=True, kw_only=True):
    """`voices` are the names, and `data` the same as objects."""

    object: Literal["list"]
    model: str
    voices: list[str]
    data: list[Json]


class Transcription(_Shape, frozen=True, kw_only=True):
    text: str
    usage: Json


class VerboseTranscription(_Shape, frozen=True, kw_only=True):
    """`segments` and `words` as `timestamp_granularities` asks for them."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[Json] | None = None
    words: list[Json] | None = None
    usage: Json


# --- models and the gateway itself ----------------------------------------------------------------


class ModelStatus(_Shape, frozen=True, kw_only=True):
    value: Literal["loaded", "loading", "unloaded", "error"]
    reason: str | None = None
    progress: float | None = None


class ModelCard(_Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int | None
    status: ModelStatus
    meta: Json


class ModelList(_Shape, frozen=True, kw_only=True):
    object: Literal["list"]
    data: list[ModelCard]


class ModelInfo(_Shape, frozen=True, kw_only=True):
    """A model in Anthropic's form."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str


class ModelPage(_Shape, frozen=True, kw_only=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ModelState(_Shape, frozen=True, kw_only=True):
    """Sizes in bytes, moments in seconds since 1970."""

    id: str
    model: str
    state: str
    reason: str | None
    pinned: bool
    pinned_until: float | None
    events: str


class CancelledRequest(_Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["request"]
    status: Literal["cancelled"]


class RequestLine(_Shape, frozen=True, kw_only=True):
    """`since` is seconds since 1970; `ttft_s` how long its first token took, null before it."""

    id: str
    route: str
    model: str
    key: str | None
    since: float
    ttft_s: float | None


class RequestList(_Shape, frozen=True, kw_only=True):
    """Requests in progress, oldest first."""

    object: Literal["list"]
    data: list[RequestLine]


class CacheStats(_Shape, frozen=True, kw_only=True):
    """By model, and what that is in all. Counters are since each model's load."""

    models: list[Json]
    total: Json


class ClearedModel(_Shape, frozen=True, kw_only=True):
    """`error` is there when the model could not be asked."""

    name: str
    entries: int
    bytes: int


class ClearedCache(_Shape, frozen=True, kw_only=True):
    """`rewarm_scheduled`: the warm prompts of the registry are being taken in again."""

    status: Literal["cleared", "partly cleared"]
    rewarm_scheduled: bool
    models: list[ClearedModel]


class ReloadOutcome(_Shape, frozen=True, kw_only=True):
    result: Literal["applied", "unchanged", "refused"]
    cause: str
    at: float
    plan: Json | None
    problems: list[Json]


class Health(_Shape, frozen=True, kw_only=True):
    status: Literal["ok", "draining"]
    version: str
    models: int
    loaded: list[str]
    failed: list[str]


class Status(_Shape, frozen=True, kw_only=True):
    version: str
    uptime_s: float
    draining: bool
    memory: Json
    models: list[Json]


class LogLine(_Shape, frozen=True, kw_only=True):
    """`at` is seconds since 1970; `source` is a part of the gateway, or `engine`."""

    at: float
    level: str
    source: str
    line: str
    model: str | None = None


class LogLines(_Shape, frozen=True, kw_only=True):
    """The last lines, oldest first."""

    lines: list[LogLine]


class Explanation(_Shape, frozen=True, kw_only=True):
    """What a request for a model would meet right now."""

    model: str
