"""Whatever clients make up, the number of series stays the same."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any, cast

import pytest

from gateway import app
from gateway.app import UNKNOWN_ROUTE, Control
from gateway.metrics import Metrics
from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.router import Router
from gateway.served import Live, Served
from gateway.server import App
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks
from tests.harness.daemon import CHAT
from tests.harness.figures import samples

pytestmark = pytest.mark.anyio

MANY = 10_000


class Nothing:
    """In place of what no request gets to."""

    def __getattr__(self, name: str) -> Any:
        return self


async def ask(asgi: App, method: str, path: str, body: bytes = b"") -> int:
    """The status of one answer; straight to the application, for there are many."""
    statuses: list[int] = []
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        return unread.pop() if unread else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    await asgi(scope, receive, send)
    (status,) = statuses
    return status


async def test_names_and_paths_that_are_not_there_add_no_series() -> None:
    metrics, nothing = Metrics(), cast(Any, Nothing())
    live = Live(Served(Loaded(), Router([]), Server()))
    control = Control(nothing, nothing, nothing, nothing)
    asgi = app.build(live, cast(Supervisor, nothing), Tasks(), metrics, control)

    async def wave(numbers: range) -> None:
        for number in numbers:
            body = {"model": f"made-up-{number}", "messages": [{"role": "user", "content": "x"}]}
            assert await ask(asgi, "POST", CHAT, json.dumps(body).encode()) == 404
            assert await ask(asgi, "GET", f"/made-up-{number}/admin.php") == 404
            if number % 10 == 0:
                assert await ask(asgi, f"MADE{number}", "/v1/models") == 405
                assert await ask(asgi, "GET", f"/v1/responses/made-up-{number}") == 404

    await wave(range(1))
    before = samples(metrics.page().decode())
    await wave(range(1, MANY + 1))
    after = samples(metrics.page().decode())
    assert after.keys() == before.keys()
    assert not [key for key in after if "made" in key.lower()]
    unknown = f"requests_total{{code=model_not_found,model=,route={CHAT}}}"
    assert after[unknown] == MANY + 1
    assert after[f"requests_total{{code=not_found,model=,route={UNKNOWN_ROUTE}}}"] == MANY + 1
