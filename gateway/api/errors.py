"""One error, rendered for a client: status, headers and the body its dialect expects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import (
    BodyTooLarge,
    Cancelled,
    Draining,
    Forbidden,
    GatewayError,
    HostNotAllowed,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from gateway.server import Scope

JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How a dialect tells an error: its HTTP status and, given the request's id, its body."""

    status: Callable[[GatewayError], int]
    body: Callable[[GatewayError, str], bytes]


def form_of(scope: Scope) -> ErrorForm:
    """For errors outside any dialect's exchange: the form that this client reads."""
    if scope["path"].startswith("/v1/messages") or speaks_anthropic(scope):
        return ANTHROPIC
    return OPENAI


def speaks_anthropic(scope: Scope) -> bool:
    """Anthropic's clients name a version of that API in every request."""
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def openai_body(error: GatewayError) -> bytes:
    """The OpenAI error object."""
    return msgspec.json.encode({"error": openai_error(error)})


def openai_error(error: GatewayError) -> dict[str, str | None]:
    return {
        "message": error.message,
        "type": _openai_type(error),
        "param": error.param,
        "code": error.code,
    }


def _openai_type(error: GatewayError) -> str:
    if isinstance(error, _CLIENTS_FAULT):
        return "invalid_request_error"
    if isinstance(error, Forbidden):
        return "permission_error"
    if isinstance(error, RateLimited):
        return "rate_limit_error"
    if isinstance(error, Unavailable):
        return "service_unavailable_error"
    return "server_error"


_CLIENTS_FAULT = (
    BodyTooLarge,
    Cancelled,
    HostNotAllowed,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
    UnsupportedMediaType,
)


def anthropic_body(error: GatewayError, request_id: str) -> bytes:
    """The Anthropic error object. Source: the errors page of its API reference."""
    return msgspec.json.encode({**anthropic_error(error), "request_id": request_id})


def anthropic_error(error: GatewayError) -> dict[str, Any]:
    """The object without a request id. `code` is ours: a type alone does not say what to do."""
    detail = {
        "type": _ANTHROPIC_TYPES.get(error.status, "api_error"),
        "message": error.message,
        "code": error.code,
    }
    return {"type": "error", "error": detail}


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    499: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _anthropic_status(error: GatewayError) -> int:
    # There is no 503 in that API: whatever the cause, "not now" is 529.
    return 529 if error.status == 503 else error.status


def headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """`Retry-After` where a retry can help; a plain "no" to the SDKs' retries where it cannot."""
    lines = [JSON]
    if error.retryable and error.retry_after_s is not None:
        seconds = max(1, math.ceil(error.retry_after_s))
        lines.append((b"retry-after", str(seconds).encode()))
    elif error.status != 500 and not error.retryable:
        lines.append((b"x-should-retry", b"false"))
    if isinstance(error, Draining | BodyTooLarge):
        lines.append((b"connection", b"close"))
    if isinstance(error, Unauthorized):
        lines.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        lines.append((b"allow", error.allow.encode()))
    return lines


OPENAI = ErrorForm(lambda error: error.status, lambda error, _: openai_body(error))
ANTHROPIC = ErrorForm(_anthropic_status, anthropic_body)
