"""Fields that every dialect takes beside its own: what a request asks of the gateway itself."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequest
from gateway.residency import Priority
from gateway.supervisor.setup import Wish

MAX_SECONDS = 31_536_000


class ServiceFields(msgspec.Struct, frozen=True, kw_only=True):
    """`keep_alive`: seconds the model stays loaded afterwards, -1 for good. `timeout`: seconds
    that the whole request may take. `priority` can only lower what the registry grants."""

    keep_alive: Annotated[float, Meta(ge=-1, le=MAX_SECONDS)] | None = None
    priority: Literal["high", "normal", "low"] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None


def wish(fields: ServiceFields) -> Wish:
    """Raises `InvalidRequest` for a `keep_alive` between -1 and 0."""
    keep = fields.keep_alive
    if keep is not None and -1 < keep < 0:
        raise InvalidRequest(
            "keep_alive: expected seconds, or -1 to keep the model loaded", param="keep_alive"
        )
    priority = Priority[fields.priority.upper()] if fields.priority else None
    return Wish(priority=priority, keep_alive_s=keep)
