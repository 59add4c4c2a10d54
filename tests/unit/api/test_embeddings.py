"""Requests for vectors and ranking to the wire, and their results to a body."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from engines import wire
from gateway.api import embeddings, rerank
from gateway.api.dialect import Defaults
from gateway.errors import GatewayError, InvalidRequest
from gateway.supervisor.call import Granted

USAGE = wire.Finished(7, wire.Usage(9, 0), wire.Timings())


def asked(**fields: Any) -> wire.Embed:
    body = json.dumps({"model": "m", "input": "text", **fields}).encode()
    made = embeddings.decode(body).make(7, Defaults())
    assert isinstance(made, wire.Embed)
    return made


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_every_form_of_input(given: Any, inputs: list[Any]) -> None:
    assert asked(input=given) == wire.Embed(7, inputs)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"truncate": True}, {"truncate": True}),
        ({"truncate": "END"}, {"truncate": True}),
        ({"truncate": "NONE"}, {"truncate": False}),
        ({"truncate_prompt_tokens": -1}, {"truncate": True}),
        ({"dimensions": 64}, {"dimensions": 64}),
        ({"prompt_name": "sts"}, {"prompt": "sts"}),
        ({"input_type": "search_query"}, {"prompt": "query"}),
        ({"input_type": "passage"}, {"prompt": "document"}),
        ({"user": "u", "timeout": 3}, {}),
    ],
)
def test_fields_reach_the_wire(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert asked(**fields) == wire.Embed(7, ["text"], **wanted)


@pytest.mark.parametrize("cut", [4, 8, 12, 16])
@pytest.mark.parametrize("format", ["float", "base64"])
def test_vectors_are_put_together_however_they_were_cut(cut: int, format: str) -> None:
    values = [0.5, -1.25, 3.0, 4.0]
    data = struct.pack("<4f", *values)
    body = {"model": "m", "input": ["a", "b"], "encoding_format": format}
    encoder = embeddings.VectorsEncoder(embeddings.decode(json.dumps(body).encode()))
    encoder.add([Granted(), wire.Started(7, 9)])
    for seq, at in enumerate(range(0, len(data), cut)):
        encoder.add([wire.Bytes(7, seq, data[at : at + cut])])
    encoder.add([USAGE])
    answer = json.loads(encoder.body())
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert (answer["object"], answer["model"]) == ("list", "m")
    vectors: list[Any] = [values[:2], values[2:]]
    if format == "base64":
        vectors = [base64.b64encode(data[:8]).decode(), base64.b64encode(data[8:]).decode()]
    assert answer["data"] == [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]


# --- ranking --------------------------------------------------------------------------------------


def ranking(**fields: Any) -> rerank.DecodedRerank:
    body = {"model": "m", "query": "q", "documents": ["a", {"text": "b"}, "c"], **fields}
    return rerank.decode(json.dumps(body).encode())


@pytest.mark.parametrize(("truncate", "wanted"), [(None, True), (True, True), (False, False)])
def test_documents_are_cut_unless_they_may_not_be(truncate: bool | None, wanted: bool) -> None:
    made = ranking(truncate=truncate).make(7, Defaults())
    assert made == wire.Rerank(7, "q", ["a", "b", "c"], truncate=wanted)


@pytest.mark.parametrize(
    ("fields", "order", "texts"),
    [
        ({}, [1, 0, 2], None),
        ({"top_n": 2}, [1, 0], None),
        ({"top_n": 99, "return_documents": True}, [1, 0, 2], ["b", "a", "c"]),
    ],
)
def test_results_are_sorted(
    fields: dict[str, Any], order: list[int], texts: list[str] | None
) -> None:
    encoder = rerank.ScoresEncoder(ranking(**fields))
    encoder.add([Granted(), wire.Scores(7, [0.5, 0.9, 0.5]), USAGE])
    answer = json.loads(encoder.body())
    assert [result["index"] for result in answer["results"]] == order
    documents = [result.get("document") for result in answer["results"]]
    assert documents == ([None] * len(order) if texts is None else [{"text": t} for t in texts])
    assert answer["meta"] == {"tokens": {"input_tokens": 9}}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"model": "m"', b'{"model": "\xff"}', b"[" * 100_000]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    for decode in (embeddings.decode, rerank.decode):
        with pytest.raises(InvalidRequest) as caught:
            decode(body)
        assert isinstance(caught.value, GatewayError)
        assert caught.value.status == 400
