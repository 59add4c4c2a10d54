"""The dashboard: the files of `gateway/web`, as they are, with what keeps its page safe.

Nothing here needs a key and nothing tells anything: the page asks for its data like any client.
Files are read once, when somebody first asks for one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from starlette.exceptions import HTTPException

from gateway.api.sse import respond
from gateway.security import guard
from gateway.server import Receive, Scope, Send

PAGE = "index.html"
MEDIA_TYPES = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script, style or request of any other place, whatever a model or a file says."""

SAFE = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


@dataclass(frozen=True, slots=True)
class File:
    """`tag` is its ETag."""

    data: bytes
    tag: str
    media_type: bytes


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    """`GET /`, as an ASGI application."""
    await _show(PAGE, scope, send)


async def asset(scope: Scope, receive: Receive, send: Send) -> None:
    """`GET /web/{name}`, as an ASGI application: what the page is made of."""
    await _show(scope["path_params"]["name"], scope, send)


@cache
def files() -> dict[str, File]:
    """By name, those of a kind that the page can use."""
    found = {}
    for entry in (resources.files("gateway") / "web").iterdir():
        media_type = MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            data = entry.read_bytes()
            tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            found[entry.name] = File(data, tag, media_type)
    return found


async def _show(name: str, scope: Scope, send: Send) -> None:
    file = files().get(name)
    if file is None:
        raise HTTPException(404)
    # Asked about every time and rarely sent: after an update the pieces always fit together.
    headers = [(b"etag", file.tag.encode()), (b"cache-control", b"no-cache"), *SAFE]
    if file.tag in _tags(guard.header(scope, b"if-none-match") or ""):
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    await respond(send, 200, file.data, [(b"content-type", file.media_type), *headers])


def _tags(asked: str) -> set[str]:
    """What a browser has; a proxy on the way may have made a tag a weak one."""
    return {tag.strip().removeprefix("W/") for tag in asked.split(",")}
