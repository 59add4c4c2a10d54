"""`POST /v1/embeddings`: texts or token lists in, a vector of each out, in the OpenAI dialect.

Beside OpenAI's fields: `truncate` cuts what is too long, which is an error without it (`true` and
`"END"` say so, and `truncate_prompt_tokens: -1` as vLLM has it); `input_type` says which side of a
search the texts are on, and `prompt_name` names one of the model's own prompts.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.decode import BodyDecoder
from gateway.api.dialect import Decoded, Defaults
from gateway.api.openai_fields import ModelName
from gateway.api.service_fields import ServiceFields, wish
from gateway.errors import InvalidRequest, Unsupported
from gateway.supervisor.call import CallItem

MAX_INPUTS = 2048
"""OpenAI's own bound."""

MAX_TOKEN_ID = 2**31 - 1

Input = str | list[int]

_SIDES: dict[str, Literal["query", "document"]] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "search_document": "document",
    "passage": "document",
}


class EmbeddingsRequest(ServiceFields, frozen=True, kw_only=True):
    """What is read of a request; unknown fields are ignored. `user` changes nothing."""

    model: ModelName
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    user: str | None = None
    truncate: bool | Literal["NONE", "END"] | None = None
    truncate_prompt_tokens: int | None = None
    input_type: (
        Literal["query", "document", "passage", "search_query", "search_document"] | None
    ) = None
    prompt_name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedEmbeddings(Decoded):
    """`inputs` is how many vectors there will be; `base64` is how they are written."""

    inputs: int
    base64: bool


_decoder = BodyDecoder(EmbeddingsRequest)


def decode(body: bytes) -> DecodedEmbeddings:
    """The neutral request. Raises `InvalidRequest`, naming the field."""
    request = _decoder.decode(body)
    inputs = _inputs(request.input)
    asked = wire.Embed(
        id=0,
        inputs=inputs,
        dimensions=request.dimensions,
        truncate=_truncate(request),
        prompt=_prompt(request),
    )
    return DecodedEmbeddings(
        model=request.model,
        stream=False,
        include_usage=True,
        make=partial(_embed, asked),
        timeout_s=request.timeout,
        wish=wish(request),
        inputs=len(inputs),
        base64=request.encoding_format == "base64",
    )


def _embed(asked: wire.Embed, call_id: int, defaults: Defaults) -> wire.Embed:
    return msgspec.structs.replace(asked, id=call_id)


def _inputs(given: str | list[str | int | list[int]]) -> list[Input]:
    """One text, a list of texts, one list of token ids, or a list of such lists."""
    if isinstance(given, str):
        return [_text(given, "input")]
    if not given:
        raise InvalidRequest("input: the list is empty", param="input")
    kind = type(given[0])
    for i, item in enumerate(given):
        if type(item) is not kind:
            raise InvalidRequest(
                f"input[{i}]: texts, token ids and lists of token ids cannot be mixed",
                param=f"input[{i}]",
            )
    if kind is int:
        return [_token_ids(given, "input")]
    if len(given) > MAX_INPUTS:
        raise InvalidRequest(
            f"input: {len(given)} inputs in one request; at most {MAX_INPUTS} are served",
            param="input",
        )
    return [
        _text(item, f"input[{i}]") if isinstance(item, str) else _token_ids(item, f"input[{i}]")
        for i, item in enumerate(given)
    ]


def _text(text: str, path: str) -> str:
    if not text:
        raise InvalidRequest(f"{path}: the text is empty", param=path)
    return text


def _token_ids(ids: Any, path: str) -> list[int]:
    if not ids:
        raise InvalidRequest(f"{path}: there are no token ids", param=path)
    for i, token_id in enumerate(ids):
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise InvalidRequest(f"{path}[{i}]: not a token id", param=f"{path}[{i}]")
    return list(ids)


def _truncate(request: EmbeddingsRequest) -> bool:
    """Raises `Unsupported` for a length of the client's own."""
    if request.truncate_prompt_tokens not in (None, -1):
        raise Unsupported(
            "truncate_prompt_tokens: only -1 is served, the length that the model takes",
            param="truncate_prompt_tokens",
        )
    return request.truncate in (True, "END") or request.truncate_prompt_tokens == -1


def _prompt(request: EmbeddingsRequest) -> str | None:
    if request.input_type is None:
        return request.prompt_name
    if request.prompt_name is not None:
        raise InvalidRequest(
            "prompt_name: cannot be combined with input_type, which chooses the prompt",
            param="prompt_name",
        )
    return _SIDES[request.input_type]


class VectorsEncoder:
    """The vectors, once they are all there, to one list object."""

    def __init__(self, decoded: DecodedEmbeddings) -> None:
        self._decoded = decoded
        self._data: list[bytes] = []
        self._tokens = 0

    def add(self, items: Sequence[CallItem]) -> None:
        for item in items:
            if isinstance(item, wire.Bytes):
                self._data.append(item.data)
            elif isinstance(item, wire.Finished):
                self._tokens = item.usage.prompt_tokens

    def body(self) -> bytes:
        usage = {"prompt_tokens": self._tokens, "total_tokens": self._tokens}
        end = {"model": self._decoded.model, "usage": usage}
        # Written in pieces: as one object, the numbers would take many times their space.
        return b"".join(
            (
                b'{"object":"list","data":[',
                b",".join(self._vectors()),
                b"],",
                msgspec.json.encode(end)[1:],
            )
        )

    def _vectors(self) -> Iterator[bytes]:
        data = b"".join(self._data)
        size = len(data) // self._decoded.inputs
        for index in range(self._decoded.inputs):
            vector = data[index * size : (index + 1) * size]
            yield b'{"object":"embedding","index":%d,"embedding":%b}' % (
                index,
                b'"%b"' % base64.b64encode(vector) if self._decoded.base64 else _numbers(vector),
            )


def _numbers(vector: bytes) -> bytes:
    """Little-endian float32, as every machine that MLX runs on has it, as a JSON list."""
    values = array("f")
    values.frombytes(vector)
    return msgspec.json.encode(values.tolist())
