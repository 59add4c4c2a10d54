"""A Hugging Face hub on this machine: as much of one as its own library needs to fetch models.

`HF_ENDPOINT` leads there. It can hold an answer back in the middle, send damaged bytes, and ask for
a token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

HOLD_S = 60.0
LARGE = 2**20
"""Files from here on are known by their SHA-256, smaller ones by git's own checksum."""

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass(slots=True)
class Asked:
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class FakeHub:
    """Repositories by id, each of files by path. One commit each, of the revision `main`."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    token: str = "hf_secretsecretsecret"
    damaged: set[str] = field(default_factory=set)
    hold_at: dict[str, int] = field(default_factory=dict)
    """Files that stop after so many bytes, until `release`."""
    release: threading.Event = field(default_factory=threading.Event)
    ranges: bool = True
    """False: a request for a part is answered with the whole, as some caches do."""
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def commit(self, repo: str) -> str:
        """Of what is in the repository now."""
        digest = hashlib.sha1(usedforsecurity=False)
        for path, content in sorted(self.repositories[repo].items()):
            digest.update(path.encode() + hashlib.sha256(content).digest())
        return digest.hexdigest()

    def fetched(self, ending: str) -> list[Asked]:
        return [each for each in self.asked if each.method == "GET" and each.path.endswith(ending)]

    def info(self, repo: str) -> dict[str, Any]:
        files = self.repositories[repo]
        return {
            "id": repo,
            "sha": self.commit(repo),
            "gated": "manual" if repo in self.gated else False,
            "tags": ["safetensors"],
            "siblings": [_sibling(path, content) for path, content in files.items()],
        }


def _sibling(path: str, content: bytes) -> dict[str, Any]:
    size = len(content)
    blob = hashlib.sha1(b"blob %d\0" % size + content, usedforsecurity=False).hexdigest()
    sibling: dict[str, Any] = {"rfilename": path, "size": size, "blobId": blob}
    if size >= LARGE:
        digest = hashlib.sha256(content).hexdigest()
        sibling["lfs"] = {"size": size, "sha256": digest, "pointerSize": 130}
    return sibling


@contextlib.contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, name="hub", daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.release.set()
            server.shutdown()
            thread.join(HOLD_S)


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[FakeHub]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        authorization = self.headers.get("authorization")
        self.hub.asked.append(Asked("GET", path, self.headers.get("range"), authorization))
        if (found := _INFO.fullmatch(path)) is not None:
            self._answer(found[1], found[2] or "main", None)
        elif (found := _FILE.fullmatch(path)) is not None:
            self._answer(found[1], found[2], found[3])
        else:
            self._refuse(404, "EntryNotFound")

    def _answer(self, repo: str, revision: str, path: str | None) -> None:
        hub = self.hub
        allowed = self.headers.get("authorization") == f"Bearer {hub.token}"
        if repo not in hub.repositories or (repo in hub.private and not allowed):
            return self._refuse(401, "RepoNotFound")
        if revision not in ("main", hub.commit(repo)):
            return self._refuse(404, "RevisionNotFound")
        if path is None:
            return self._send(json.dumps(hub.info(repo)).encode())
        if repo in hub.gated and not allowed:
            return self._refuse(403, "GatedRepo")
        if path not in hub.repositories[repo]:
            return self._refuse(404, "EntryNotFound")
        return self._file(path, hub.repositories[repo][path])

    def _file(self, path: str, content: bytes) -> None:
        if path in self.hub.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        begin, status = 0, 200
        if (asked := self.headers.get("range")) is not None and self.hub.ranges:
            begin, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
        self.send_response(status)
        if status == 206:
            self.send_header("content-range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("content-length", str(len(content) - begin))
        self.end_headers()
        stop = self.hub.hold_at.get(path, len(content))
        with contextlib.suppress(OSError):  # the client may have gone
            self.wfile.write(content[begin : max(begin, stop)])
            if stop < len(content):
                self.wfile.flush()
                self.hub.release.wait(HOLD_S)
                self.wfile.write(content[max(begin, stop) :])

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("x-error-code", code)
        self.send_header("content-length", "0")
        self.end_headers()

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at `asked`."""
