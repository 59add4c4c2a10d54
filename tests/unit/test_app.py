"""What lies around every route: a bug is a JSON error too, and every request is counted."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest

from gateway import app
from gateway.app import Control
from gateway.metrics import Metrics
from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.router import Router
from gateway.served import Live, Served
from gateway.server import Receive, Scope, Send
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

pytestmark = pytest.mark.anyio


class Broken:
    """Every route to operate the gateway has a bug."""

    def __getattr__(self, name: str) -> Any:
        async def broken(scope: Scope, receive: Receive, send: Send) -> None:
            raise RuntimeError("a secret detail")

        return broken


async def test_a_bug_is_an_error_without_its_details_and_is_counted() -> None:
    metrics = Metrics()
    live = Live(Served(Loaded(), Router([]), Server()))
    broken = cast(Any, Broken())
    asgi = app.build(
        live, cast(Supervisor, broken), Tasks(), metrics, Control(broken, broken, broken)
    )
    transport = httpx.ASGITransport(cast(Any, asgi), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get("/health")
    assert answer.status_code == 500
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.json()["error"] == {
        "message": "the gateway failed while answering; its log says how",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert b'code="internal_error",model="",route="/health"} 1.0' in metrics.page()
