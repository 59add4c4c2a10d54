"""What a browser must not be used for: requests of foreign pages, rebound names, disguised forms.

Pure: each function looks at a request's headers and the settings in force.
"""

from __future__ import annotations

import socket
from functools import cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway.errors import HostNotAllowed, InvalidRequest, OriginNotAllowed, UnsupportedMediaType
from gateway.registry.schema import Server
from gateway.server import Scope

Headers = list[tuple[bytes, bytes]]

ALWAYS = frozenset({"localhost", "127.0.0.1", "::1", "host.docker.internal"})
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
PREFLIGHT_S = b"600"
MAX_ASKED = 1024
"""Bytes of a preflight's list of headers; browsers send a few names."""

EXPOSED = b"x-request-id, request-id, retry-after, location"


def header(scope: Scope, wanted: bytes) -> str | None:
    """The first header of this name; ASGI has them in small letters."""
    for name, value in scope["headers"]:
        if name == wanted:
            text: str = value.decode("latin-1")
            return text
    return None


# --- Host -----------------------------------------------------------------------------------------


def check_host(scope: Scope, server: Server) -> None:
    """Raises `HostNotAllowed`. Only HTTP/1.0 goes without the header, which no browser speaks."""
    host = header(scope, b"host")
    if host is None:
        return
    name = host_name(host)
    if name not in _allowed_hosts(scope, server):
        raise HostNotAllowed(
            f"this gateway does not answer to the host {host[:100]!r}; the operator can add its "
            "name to server.hosts"
        )


def host_name(host: str) -> str:
    """The name of `name:port`, in small letters; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _allowed_hosts(scope: Scope, server: Server) -> set[str]:
    local = scope.get("server")
    return {
        *ALWAYS,
        *_machine_names(),
        server.host.lower(),
        *(host.lower() for host in server.hosts),
        *([str(local[0]).lower()] if local else ()),  # the address that the client connected to
    }


@cache
def _machine_names() -> frozenset[str]:
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return frozenset({name, short, f"{short}.local"})


# --- Origin ---------------------------------------------------------------------------------------


def check_origin(scope: Scope, server: Server) -> str | None:
    """The origin to be answered, if it is another one. Raises `OriginNotAllowed`, and for a
    preflight `InvalidRequest`.

    A page of this server itself names the host that it was asked under, which is checked before.
    """
    origin = header(scope, b"origin")
    if origin is None:
        return None
    allowed = {entry.lower().rstrip("/") for entry in server.cors_origins}
    if "*" in allowed or origin.lower() in allowed:
        return origin
    parts, host = urlsplit_or_none(origin), header(scope, b"host")
    # Whatever the scheme: a proxy may have taken the TLS off.
    if parts is not None and host is not None and parts[1] == host.lower():
        return None
    message = (
        f"pages of {origin[:100]!r} may not use this gateway; the operator can add the origin to "
        "server.cors_origins"
    )
    # A preflight is a question of the browser's, and "no" to it is not a request refused.
    raise InvalidRequest(message) if is_preflight(scope) else OriginNotAllowed(message)


def urlsplit_or_none(origin: str) -> tuple[str, str] | None:
    """Scheme and host with port; None for `null` and whatever else is no origin."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return (parts.scheme.lower(), parts.netloc.lower()) if parts.netloc else None


def is_preflight(scope: Scope) -> bool:
    return (
        scope["method"] == "OPTIONS"
        and header(scope, b"origin") is not None
        and header(scope, b"access-control-request-method") is not None
    )


def preflight_headers(scope: Scope) -> Headers:
    """What a page of an allowed origin may send: the headers it asks for, with any method."""
    lines: Headers = [
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE"),
        (b"access-control-max-age", PREFLIGHT_S),
    ]
    asked = (header(scope, b"access-control-request-headers") or "").encode("latin-1")
    if asked and len(asked) <= MAX_ASKED:
        lines.append((b"access-control-allow-headers", asked))
    if header(scope, b"access-control-request-private-network") == "true":
        lines.append((b"access-control-allow-private-network", b"true"))
    return lines


def cors_headers(origin: str) -> Headers:
    """On every answer to an allowed origin. Never with credentials: keys are sent by scripts."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"Origin"),
    ]


# --- content type ---------------------------------------------------------------------------------

FORM_PATHS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})


def check_content_type(scope: Scope) -> None:
    """Raises `UnsupportedMediaType` for a body that says it is no JSON.

    Pages can send forms and plain text anywhere without being asked for it first. A body without
    a type passes: from a page it comes with an `Origin`.
    """
    if scope["method"] not in WRITES or header(scope, b"content-length") == "0":
        return
    given = header(scope, b"content-type")
    if given is None:
        return
    kind = given.partition(";")[0].strip().lower()
    if scope["path"] in FORM_PATHS:
        # From a page it comes with an `Origin` too, and so is as safe as a body without a type.
        if kind != "multipart/form-data":
            raise UnsupportedMediaType(
                f"the body has to be a form with a file, not {kind[:100]!r}; send "
                "multipart/form-data (curl: -F file=@speech.mp3 -F model=NAME)"
            )
        return
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise UnsupportedMediaType(
            f"the body has to be JSON, not {kind[:100]!r}; send the header "
            "'Content-Type: application/json' (curl: -H 'Content-Type: application/json')"
        )


# --- this machine ---------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`, or is the client at it."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def needs_keys(server: Server) -> bool:
    """Whether these settings would open the gateway to others without asking for a key."""
    return not (server.api_keys or server.allow_insecure or is_loopback(server.host))
