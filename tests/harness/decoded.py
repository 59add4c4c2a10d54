"""What a decoded request asks of its engine."""

from __future__ import annotations

from engines import wire
from gateway.api.dialect import Decoded, Defaults

CALL_ID = 7


def text_call(decoded: Decoded, defaults: Defaults | None = None) -> wire.Generate:
    """The call of a request for text."""
    request = decoded.make(CALL_ID, defaults or Defaults())
    assert isinstance(request, wire.Generate)
    return request
