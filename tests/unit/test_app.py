"""What lies around every route: a bug is a JSON error too, and every request is counted."""

from __future__ import annotations

import logging
from typing import Any, cast

import httpx
import pytest

from gateway import app
from gateway.api.sse import respond
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


def client(metrics: Metrics, operate: Broken | None = None) -> httpx.AsyncClient:
    live = Live(Served(Loaded(), Router([]), Server()))
    broken = cast(Any, Broken())
    control = Control(cast(Any, operate) or broken, broken, broken, broken)
    asgi = app.build(live, cast(Supervisor, broken), Tasks(), metrics, control)
    transport = httpx.ASGITransport(cast(Any, asgi), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def test_a_bug_is_an_error_without_its_details_and_is_counted() -> None:
    metrics = Metrics()
    async with client(metrics) as asking:
        answer = await asking.get("/health")
    assert answer.status_code == 500
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.json()["error"] == {
        "message": "the gateway failed while answering; its log says how",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert b'code="internal_error",model="",route="/health"} 1.0' in metrics.page()


class Probed(Broken):
    """Whatever state the gateway is in, it says that in this status."""

    def __init__(self, status: int) -> None:
        self._status = status

    async def readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, self._status, b"")


@pytest.mark.parametrize(("status", "logged"), [(200, []), (503, ["503"])])
async def test_only_a_probe_that_fails_is_logged(
    status: int, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gateway.requests"):
        async with client(Metrics(), Probed(status)) as asking:
            assert (await asking.get("/readyz")).status_code == status
    assert [record.getMessage().split(" ")[2] for record in caplog.records] == logged
