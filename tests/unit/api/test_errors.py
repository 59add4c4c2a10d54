"""Every error there is, as the OpenAI and Anthropic dialects tell it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gateway import errors
from gateway.api.errors import ANTHROPIC, OPENAI, form_of, headers, openai_body

Kind = type[errors.GatewayError]


def kinds(base: Kind = errors.GatewayError) -> Iterator[Kind]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def made(kind: Kind) -> errors.GatewayError:
    if kind is errors.MethodNotAllowed:
        return errors.MethodNotAllowed("what is wrong", allow="GET, HEAD")
    return kind("what is wrong", param="x")


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_every_kind_has_a_complete_body(kind: Kind) -> None:
    error = json.loads(openai_body(made(kind)))["error"]
    assert (error["message"], error["code"]) == ("what is wrong", kind.code)
    assert error["param"] == made(kind).param
    expected = {4: "invalid_request_error", 5: "server_error"}[kind.status // 100]
    expected = {403: "permission_error", 429: "rate_limit_error"}.get(kind.status, expected)
    if kind.status == 503:
        expected = "service_unavailable_error"
    if kind.status != 499:  # nobody is left to read these
        assert error["type"] == expected


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_every_kind_has_an_anthropic_form(kind: Kind) -> None:
    error = made(kind)
    if kind.status == 499:  # nobody is left to read these
        return
    assert json.loads(ANTHROPIC.body(error, "req_1")) == {
        "type": "error",
        "error": {
            "type": ANTHROPIC_TYPES[kind.status],
            "message": "what is wrong",
            "code": kind.code,
        },
        "request_id": "req_1",
    }
    assert ANTHROPIC.status(error) == (529 if kind.status == 503 else kind.status)
    assert OPENAI.status(error) == kind.status


@pytest.mark.parametrize(
    ("path", "headers", "anthropic"),
    [
        ("/v1/messages", [], True),
        ("/v1/messages/count_tokens", [], True),
        ("/v1/models", [], False),
        ("/v1/models", [(b"anthropic-version", b"2023-06-01")], True),
        ("/v1/chat/completions", [(b"accept", b"*/*")], False),
    ],
)
def test_an_error_has_the_form_that_its_client_reads(
    path: str, headers: list[tuple[bytes, bytes]], anthropic: bool
) -> None:
    form = form_of({"path": path, "headers": headers})
    assert form is (ANTHROPIC if anthropic else OPENAI)


def test_no_two_kinds_share_a_code() -> None:
    codes = [kind.code for kind in kinds() if "code" in vars(kind)]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.NoCapacity("x", retry_after_s=2.1), {"retry-after": "3"}),
        (errors.NoCapacity("x", retry_after_s=0), {"retry-after": "1"}),
        (errors.NoCapacity("x"), {}),
        (errors.Draining("x", retry_after_s=5), {"retry-after": "5", "connection": "close"}),
        (errors.ModelUnavailable("x", retry_after_s=5), {"x-should-retry": "false"}),
        (errors.InvalidRequest("x"), {"x-should-retry": "false"}),
        (errors.ModelTooLarge("x", retry_after_s=5), {"x-should-retry": "false"}),
        (errors.ModelNotFound("x"), {"x-should-retry": "false"}),
        (errors.BodyTooLarge("x"), {"x-should-retry": "false", "connection": "close"}),
        (
            errors.MethodNotAllowed("x", allow="GET"),
            {"x-should-retry": "false", "allow": "GET"},
        ),
        (errors.InternalError("x"), {}),
        (errors.RateLimited("x", retry_after_s=0.2), {"retry-after": "1"}),
        (
            errors.Unauthorized("x"),
            {"x-should-retry": "false", "www-authenticate": "Bearer"},
        ),
        (errors.Cancelled("x"), {"x-should-retry": "false"}),
    ],
    ids=lambda value: value.code if isinstance(value, errors.GatewayError) else "",
)
def test_clients_are_told_whether_to_try_again(
    error: errors.GatewayError, expected: dict[str, str]
) -> None:
    lines = {name.decode(): value.decode() for name, value in headers(error)}
    assert lines.pop("content-type") == "application/json"
    assert lines == expected
