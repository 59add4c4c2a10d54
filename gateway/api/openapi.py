"""`GET /openapi.json`: every route as an OpenAPI 3.1 document.

Made from the structs that requests are decoded into, so it cannot say anything else about them.
Made once, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from gateway import __version__
from gateway.api import shapes
from gateway.api.admin import Pin
from gateway.api.chat import ChatRequest
from gateway.api.completions import CompletionRequest
from gateway.api.embeddings import EmbeddingsRequest
from gateway.api.messages import MessagesRequest, PromptRequest
from gateway.api.rerank import ROUTES as RERANK_ROUTES
from gateway.api.rerank import RerankRequest
from gateway.api.responses import ResponsesRequest
from gateway.api.speech import MEDIA_TYPES, SpeechRequest
from gateway.api.sse import respond
from gateway.api.tokens import DetokenizeRequest, TokenizeRequest
from gateway.api.transcriptions import TranscriptionRequest
from gateway.server import Receive, Scope, Send

Json = dict[str, Any]
Struct = type[msgspec.Struct]

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT = "text/plain"
FORM = "multipart/form-data"
SUBTITLES = ("application/x-subrip", "text/vtt")

REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. `{...}` in the path is a parameter, `query` names others.

    `answers` are alternatives of one JSON answer; without any it is text. `events` says that the
    answer can be, or is, an event stream; `files` are media types of files that it can be. With
    `optional_body` there need be none. With `form` it is a form that has a file beside its fields.
    """

    method: str
    path: str
    summary: str
    tag: str
    body: Struct | None = None
    optional_body: bool = False
    form: bool = False
    answers: tuple[Struct, ...] = ()
    events: bool = False
    files: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ("200",)


def _generate(path: str, body: Struct, answer: Struct, summary: str) -> Operation:
    return Operation(
        method="post",
        path=path,
        summary=summary,
        tag="generate",
        body=body,
        answers=(answer,),
        events=True,
    )


def _vectors(path: str, body: Struct, answer: Struct, summary: str) -> Operation:
    return Operation(
        method="post", path=path, summary=summary, tag="vectors", body=body, answers=(answer,)
    )


def _question(path: str, body: Struct, answer: Struct, summary: str) -> Operation:
    return Operation(
        method="post", path=path, summary=summary, tag="tokens", body=body, answers=(answer,)
    )


def _from_audio(name: str, summary: str) -> Operation:
    return Operation(
        method="post",
        path=f"/v1/audio/{name}",
        summary=summary,
        tag="audio",
        body=TranscriptionRequest,
        form=True,
        answers=(shapes.Transcription, shapes.VerboseTranscription),
        events=True,
        files=(TEXT, *SUBTITLES),
    )


def _response(
    method: str, more: str, answer: Struct, summary: str, query: tuple[str, ...] = ()
) -> Operation:
    return Operation(
        method=method,
        path=f"/v1/responses/{{id}}{more}",
        summary=summary,
        tag="responses",
        answers=(answer,),
        query=query,
        events="stream" in query,
    )


def _model(
    method: str,
    action: str,
    summary: str,
    *statuses: str,
    body: Struct | None = None,
    query: tuple[str, ...] = (),
) -> Operation:
    return Operation(
        method=method,
        path=f"/v1/models/{{model}}/{action}",
        summary=summary,
        tag="models",
        body=body,
        optional_body=True,
        answers=(shapes.ModelState,),
        query=query,
        statuses=statuses or ("200",),
    )


def _request(method: str, more: str) -> Operation:
    return Operation(
        method=method,
        path=f"/v1/requests/{{id}}{more}",
        summary="End a request in progress, by its id or that of its answer",
        tag="requests",
        answers=(shapes.CancelledRequest,),
    )


def _clear(more: str, summary: str, *query: str) -> Operation:
    return Operation(
        method="delete",
        path=f"/v1/cache{more}",
        summary=summary,
        tag="operate",
        answers=(shapes.ClearedCache,),
        query=query,
    )


def _get(path: str, summary: str, *answers: Struct, **more: Any) -> Operation:
    return Operation(
        method="get", path=path, summary=summary, tag="operate", answers=answers, **more
    )


OPERATIONS: tuple[Operation, ...] = (
    _generate("/v1/chat/completions", ChatRequest, shapes.ChatCompletion, "A chat completion"),
    _generate("/v1/completions", CompletionRequest, shapes.TextCompletion, "A text completion"),
    _generate("/v1/messages", MessagesRequest, shapes.Message, "A message"),
    _generate("/v1/responses", ResponsesRequest, shapes.Response, "A response"),
    _response("get", "", shapes.Response, "A response", ("stream", "starting_after")),
    _response("delete", "", shapes.DeletedResponse, "Forget a response"),
    _response("post", "/cancel", shapes.Response, "End a response in the background"),
    _response("get", "/input_items", shapes.InputItems, "Its input", ("limit", "order", "after")),
    _question(
        "/v1/messages/count_tokens", PromptRequest, shapes.TokenCount, "The length of a prompt"
    ),
    _question("/tokenize", TokenizeRequest, shapes.TokenList, "The tokens of a text or a prompt"),
    _question("/detokenize", DetokenizeRequest, shapes.Prompt, "The text of tokens"),
    _vectors("/v1/embeddings", EmbeddingsRequest, shapes.Embeddings, "Vectors of texts"),
    *(
        _vectors(route, RerankRequest, shapes.Ranking, "Documents by relevance")
        for route in RERANK_ROUTES
    ),
    Operation(
        method="post",
        path="/v1/audio/speech",
        summary="Speak a text",
        tag="audio",
        body=SpeechRequest,
        events=True,
        files=tuple(MEDIA_TYPES.values()),
    ),
    _from_audio("transcriptions", "What is said in a file"),
    _from_audio("translations", "What is said in a file, in English"),
    Operation(
        method="get",
        path="/v1/audio/voices",
        summary="The voices of a speech model",
        tag="audio",
        answers=(shapes.VoiceList,),
        query=("model",),
    ),
    Operation(
        method="get",
        path="/v1/requests",
        summary="The requests in progress that this key may end",
        tag="requests",
        answers=(shapes.RequestList,),
    ),
    _request("post", "/cancel"),
    _request("delete", ""),
    _get(
        "/v1/models",
        "The models",
        *(shapes.ModelList, shapes.ModelPage),
        query=("limit", "before_id", "after_id"),
    ),
    _get("/v1/models/{model}", "One model", shapes.ModelCard, shapes.ModelInfo),
    _model("post", "load", "Load a model", "200", "202", query=("wait",)),
    _model("post", "unload", "Unload a model", "200", "202"),
    _model("put", "pin", "Keep a model, once it is loaded", body=Pin),
    _model("delete", "pin", "End what a pin began"),
    _get("/v1/models/{model}/events", "What happens to a model", events=True),
    _get("/v1/cache/stats", "What models keep of prompts", shapes.CacheStats, query=("model",)),
    _clear("", "Have models forget prompts and images", "model"),
    _clear("/prefix", "Have models forget prompts", "model", "prefix"),
    _get("/health", "How the gateway is", shapes.Health),
    _get("/livez", "Whether it is alive"),
    _get("/readyz", "Whether it takes requests"),
    _get("/metrics", "Prometheus metrics", query=("aliases",)),
    _get("/v1/status", "Everything about every model", shapes.Status),
    _get("/openapi.json", "This document"),
    _get("/", "The dashboard", files=("text/html",)),
    _get("/web/{name}", "What the dashboard is made of", files=("text/css", "text/javascript")),
    Operation(
        method="post",
        path="/admin/reload",
        summary="Read the registry again",
        tag="operate",
        answers=(shapes.ReloadOutcome,),
    ),
    _get(
        "/admin/explain",
        "What a request for a model would meet",
        shapes.Explanation,
        query=("model",),
    ),
    _get("/admin/events", "What happens to all models", events=True),
    _get(
        "/admin/logs",
        "What the gateway and its engines say",
        shapes.LogLines,
        query=("lines", "model", "level", "follow"),
        events=True,
    ),
)

_ERRORS = {
    "400": "The request is wrong; `param` names the field",
    "401": "No key, or one that is not known",
    "403": "The key, or the page, may not do this",
    "404": "There is no such model, response or route",
    "405": "The route does not take this method",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "421": "The gateway does not answer to this host",
    "429": "The key has sent too many requests",
    "499": "The request was cancelled by another one",
    "500": "A fault of the gateway or of the model",
    "504": "The time of the request is over",
}
_NOT_NOW = "Not now; `Retry-After` says when to come again"
_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_OPEN = frozenset({"/health", "/livez", "/readyz", "/openapi.json", "/", "/web/{name}"})


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """The route, as an ASGI application."""
    await respond(send, 200, _encoded())


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())


def document() -> Json:
    """The whole document."""
    structs = dict.fromkeys(_structs())
    refs, schemas = msgspec.json.schema_components(structs, ref_template=REF)
    ref_of = dict(zip(structs, refs, strict=True))
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, ref_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mlx-gateway",
            "version": __version__,
            "description": "Many MLX models behind one address.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
        "security": [{name: []} for name in _SCHEMES],
    }


def _structs() -> Iterable[Struct]:
    yield from (shapes.OpenAIError, shapes.AnthropicError)
    for operation in OPERATIONS:
        if operation.body is not None:
            yield operation.body
        yield from operation.answers


def _operation(operation: Operation, ref_of: dict[Struct, Json]) -> Json:
    path = operation.path
    described: Json = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {
            **{status: _answer(operation, ref_of) for status in operation.statuses},
            **_errors(path, ref_of),
        },
    }
    if parameters := _parameters(operation):
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": not operation.optional_body,
            "content": _body(operation, ref_of[operation.body]),
        }
    if path in _OPEN:
        described["security"] = []
    return described


def _body(operation: Operation, ref: Json) -> Json:
    if not operation.form:
        return {JSON: {"schema": ref}}
    file = {"type": "string", "format": "binary"}
    with_file = {"type": "object", "properties": {"file": file}, "required": ["file"]}
    return {FORM: {"schema": {"allOf": [ref, with_file]}}}


def _operation_id(operation: Operation) -> str:
    words = operation.path.replace("{", "").replace("}", "").replace(".", "_").split("/")
    return "_".join([operation.method, *filter(None, words)])


def _parameters(operation: Operation) -> list[Json]:
    pieces = operation.path.split("/")
    names = [piece[1:-1] for piece in pieces if piece.startswith("{")]
    text: Json = {"type": "string"}
    within = [{"name": n, "in": "path", "required": True, "schema": text} for n in names]
    return [*within, *({"name": n, "in": "query", "schema": text} for n in operation.query)]


def _answer(operation: Operation, ref_of: dict[Struct, Json]) -> Json:
    content: Json = {}
    if operation.answers:
        content[JSON] = {"schema": _any_of([ref_of[answer] for answer in operation.answers])}
    elif operation.path == "/openapi.json":
        content[JSON] = {"schema": {"type": "object"}}
    elif not operation.events and not operation.files:
        content[TEXT] = {"schema": {"type": "string"}}
    if operation.events:
        content[EVENTS] = {"schema": {"type": "string"}}
    for media_type in operation.files:
        content[media_type] = {"schema": {"type": "string", "format": "binary"}}
    return {"description": operation.summary, "content": content}


def _errors(path: str, ref_of: dict[Struct, Json]) -> Json:
    """Anthropic's API has no 503: it says 529."""
    openai, anthropic = ref_of[shapes.OpenAIError], ref_of[shapes.AnthropicError]
    only_anthropic = path.startswith("/v1/messages")
    schema = anthropic if only_anthropic else _any_of([openai, anthropic])
    errors = dict(_ERRORS)
    if not only_anthropic:
        errors["503"] = _NOT_NOW
    errors["529"] = _NOT_NOW
    return {
        status: {"description": words, "content": {JSON: {"schema": schema}}}
        for status, words in errors.items()
    }


def _any_of(schemas: list[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
