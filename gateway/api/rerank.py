"""`POST /v1/rerank` and its other names: documents by relevance, in the shape of Cohere and Jina.

Results come sorted, the most relevant first; documents with equal scores stay in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.decode import BodyDecoder
from gateway.api.dialect import Decoded, Defaults
from gateway.api.openai_fields import ModelName
from gateway.api.service_fields import ServiceFields, wish
from gateway.errors import InvalidRequest, Unsupported
from gateway.supervisor.call import CallItem

ROUTES = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
ID_PREFIX = "rerank-"
MAX_DOCUMENTS = 2048

_NOT_SERVED = ("instruction", "max_tokens_per_doc", "max_chunks_per_doc", "rank_fields")


class Document(msgspec.Struct, frozen=True):
    """A document as an object; its other fields are ignored."""

    text: str


class RerankRequest(ServiceFields, frozen=True, kw_only=True):
    """What is read of a request; unknown fields are ignored.

    A document that is too long is cut at its end; with `truncate: false` that is an error.
    """

    model: ModelName
    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    return_documents: bool | None = None
    truncate: bool | None = None
    # Known and not served: only null passes.
    instruction: Any = None
    max_tokens_per_doc: Any = None
    max_chunks_per_doc: Any = None
    rank_fields: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRerank(Decoded):
    """`documents` are those to be returned, none if that was not asked for."""

    top_n: int
    documents: tuple[str, ...]


_decoder = BodyDecoder(RerankRequest)


def decode(body: bytes) -> DecodedRerank:
    """The neutral request. Raises `InvalidRequest`, naming the field."""
    request = _decoder.decode(body)
    for field in _NOT_SERVED:
        if getattr(request, field) is not None:
            raise Unsupported(f"{field}: this is not served; leave it out", param=field)
    if len(request.documents) > MAX_DOCUMENTS:
        raise InvalidRequest(
            f"documents: {len(request.documents)} in one request; at most {MAX_DOCUMENTS} are"
            " served",
            param="documents",
        )
    documents = [
        document if isinstance(document, str) else document.text for document in request.documents
    ]
    asked = wire.Rerank(
        id=0, query=request.query, documents=documents, truncate=request.truncate is not False
    )
    return DecodedRerank(
        model=request.model,
        stream=False,
        include_usage=True,
        make=partial(_rerank, asked),
        timeout_s=request.timeout,
        wish=wish(request),
        top_n=request.top_n or len(documents),
        documents=tuple(documents) if request.return_documents else (),
    )


def _rerank(asked: wire.Rerank, call_id: int, defaults: Defaults) -> wire.Rerank:
    return msgspec.structs.replace(asked, id=call_id)


class ScoresEncoder:
    """The scores to one object, with the usage as both vendors have it."""

    def __init__(self, decoded: DecodedRerank) -> None:
        self._decoded = decoded
        self._scores: list[float] = []
        self._tokens = 0

    def add(self, items: Sequence[CallItem]) -> None:
        for item in items:
            if isinstance(item, wire.Scores):
                self._scores = item.scores
            elif isinstance(item, wire.Finished):
                self._tokens = item.usage.prompt_tokens

    def body(self) -> bytes:
        decoded, scores = self._decoded, self._scores
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        return msgspec.json.encode(
            {
                "id": f"{ID_PREFIX}{decoded.serial}",
                "object": "list",
                "model": decoded.model,
                "results": [self._result(index) for index in order[: decoded.top_n]],
                "usage": {"prompt_tokens": self._tokens, "total_tokens": self._tokens},
                "meta": {"tokens": {"input_tokens": self._tokens}},
            }
        )

    def _result(self, index: int) -> dict[str, Any]:
        result: dict[str, Any] = {"index": index, "relevance_score": self._scores[index]}
        if self._decoded.documents:
            result["document"] = {"text": self._decoded.documents[index]}
        return result
