"""One tree of everything a client can be told went wrong; dialects only render it.

GatewayError
├── InvalidRequest 400              ├── QueueFull 503
│   ├── ContextLengthExceeded 400   ├── NoCapacity 503
│   ├── Unsupported 400             │
│   │   └── ToolChoiceUnsupported   │
│   └── ModelTooLarge 400           ├── ModelLoading 503
├── Unauthorized 401                │
├── Forbidden 403                   ├── RateLimited 429
├── ModelNotFound 404               ├── ModelUnavailable 503
├── NotFound 404                    ├── LoadFailed 503
├── MethodNotAllowed 405            ├── Preempted 503
├── BodyTooLarge 413                ├── EngineCrashed 503
├── UnsupportedMediaType 415        │
├── HostNotAllowed 421              │
├── RequestTimeout 504              ├── EngineHung 503
├── InternalError 500               └── Draining 503
│   └── EngineFailed 500
├── Cancelled 499
└── ClientGone, ClientTooSlow 499 (logs only: nobody is left to read them)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class GatewayError(Exception):
    """What went wrong, in terms that every dialect can render.

    `param` names the field at fault, as a path in the request body. `retry_after_s` is set when a
    retry can help, and is then a promise of sorts: the earliest moment worth trying again.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    default_param: ClassVar[str | None] = None
    """The field at fault where the kind of the error says it: an engine names none."""

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param or self.default_param
        self.retry_after_s = retry_after_s


class InvalidRequest(GatewayError):
    status = 400
    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class Unsupported(InvalidRequest):
    """A field that we know and this model, or this version, cannot honour."""

    code = "unsupported_parameter"


class ToolChoiceUnsupported(Unsupported):
    code = "tool_choice_unsupported"
    default_param = "tool_choice"


class ModelTooLarge(InvalidRequest):
    """Needs more than the whole budget, so no waiting helps."""

    code = "model_too_large"


class Unauthorized(GatewayError):
    """No key, or one that is not known; the answer says which header to send it in."""

    status = 401
    code = "invalid_api_key"


class Forbidden(GatewayError):
    """The key is known and may not do this, or not with this model."""

    status = 403
    code = "permission_denied"


class OriginNotAllowed(Forbidden):
    """A web page of another origin asks."""

    code = "origin_not_allowed"


class RateLimited(GatewayError):
    status = 429
    code = "rate_limit_exceeded"
    retryable = True


class NotFound(GatewayError):
    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    """`allow` is the header that names the methods that are."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTooLarge(GatewayError):
    status = 413
    code = "request_too_large"


class UnsupportedMediaType(GatewayError):
    status = 415
    code = "unsupported_media_type"


class HostNotAllowed(GatewayError):
    """The `Host` header names another server, as after DNS rebinding."""

    status = 421
    code = "host_not_allowed"


class Cancelled(GatewayError):
    """Another request has ended this one; there is no status of HTTP for it."""

    status = 499
    code = "cancelled"


class RequestTimeout(GatewayError):
    """The time that the client, or the operator, gave the whole request is over."""

    status = 504
    code = "timeout"


class ClientGone(GatewayError):
    status = 499
    code = "client_gone"


class ClientTooSlow(GatewayError):
    status = 499
    code = "client_too_slow"


class InternalError(GatewayError):
    """A fault of ours; the message never carries a traceback."""


class EngineFailed(InternalError):
    """The engine reported that this call failed inside the model."""

    code = "engine_error"


class Unavailable(GatewayError):
    """Not now. A retry can help when `retry_after_s` is set."""

    status = 503
    code = "unavailable"
    retryable = True


class QueueFull(Unavailable):
    code = "queue_full"


class NoCapacity(Unavailable):
    code = "no_capacity"


class ModelLoading(Unavailable):
    code = "model_loading"


class ModelUnavailable(Unavailable):
    """Its files are missing; only the operator can change that."""

    code = "model_unavailable"
    retryable = False


class LoadFailed(Unavailable):
    code = "load_failed"


class Preempted(Unavailable):
    code = "preempted"


class EngineCrashed(Unavailable):
    code = "engine_crashed"


class EngineHung(Unavailable):
    code = "engine_hung"


class Draining(Unavailable):
    code = "draining"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A decision to refuse, as a value: deciders compare and replay it, doers raise it."""

    kind: type[GatewayError]
    message: str
    retry_after_s: float | None = None

    def error(self) -> GatewayError:
        return self.kind(self.message, retry_after_s=self.retry_after_s)
