"""The gate before every route: who is asking, may they be answered at all, may they do this.

Owns the rate limits and what it has made of the settings in force; both follow a reload.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.errors import RateLimited, Unauthorized
from gateway.registry.schema import Right, Server
from gateway.security import guard
from gateway.security.keys import LOCAL, NOBODY, WATCHER, Access, Keys
from gateway.security.limits import Buckets
from gateway.server import Scope

OPEN = frozenset({"/", "/health", "/livez", "/readyz", "/openapi.json"})
PAGES = "/web/"
"""The dashboard is open, as a browser sends no key for a page; its data is not."""

GREETINGS = frozenset({"/api/hello"})
"""What coding agents ask for, as they do for /, without a key, to see whether anybody is there."""

MEASURES = frozenset({"/metrics", "/v1/status"})


class Gate:
    """`settings` gives the server settings in force."""

    def __init__(self, settings: Callable[[], Server]) -> None:
        self._settings = settings
        self._server = settings()
        self._keys = Keys(self._server.api_keys)
        self._buckets = Buckets()

    def check_browser(self, scope: Scope) -> str | None:
        """The foreign origin to be answered. Raises `HostNotAllowed`, `OriginNotAllowed`."""
        server = self._settings()
        guard.check_host(scope, server)
        return guard.check_origin(scope, server)

    def admit(self, scope: Scope) -> Access:
        """Who is asking. Raises `Unauthorized`, `UnsupportedMediaType`."""
        self._follow()
        access = self._access(scope)
        guard.check_content_type(scope)
        return access

    def demand(self, access: Access, right: Right | None, counted: bool) -> None:
        """What a route asks of whoever asks. Raises `Forbidden`, `RateLimited`."""
        if right is not None:
            access.demand(right)
        if not counted or access.name is None or access.rate_limit is None:
            return
        wait_s = self._buckets.take(access.name, access.rate_limit, time.monotonic())
        if wait_s:
            raise RateLimited(
                f"the key {access.name!r} may send {access.rate_limit} requests a minute",
                retry_after_s=wait_s,
            )

    def _follow(self) -> None:
        """Takes over the settings of a reload."""
        server = self._settings()
        if server is not self._server:
            self._server = server
            self._keys = Keys(server.api_keys)
            self._buckets.keep_only(self._keys.names)

    def _access(self, scope: Scope) -> Access:
        if not self._keys:
            return self._without_keys(scope)
        access = self._keys.find(scope)
        if access is not None:
            return access
        path = scope["path"]
        if _is_open(scope["method"], path):
            return NOBODY
        if path in MEASURES and not self._server.metrics_auth:
            return WATCHER
        more = "; server.metrics_auth: false opens this route" if path in MEASURES else ""
        raise Unauthorized(
            "this gateway asks for a key that it knows: send it as 'Authorization: Bearer KEY' "
            f"or 'x-api-key: KEY'{more}"
        )

    def _without_keys(self, scope: Scope) -> Access:
        """A reload can take the keys away from a listener that others can reach."""
        client = scope.get("client")
        if client is None or self._server.allow_insecure or guard.is_loopback(client[0]):
            return LOCAL
        raise Unauthorized("this gateway has no keys and serves its own machine only")


def _is_open(method: str, path: str) -> bool:
    return path in OPEN or path.startswith(PAGES) or (method == "HEAD" and path in GREETINGS)
