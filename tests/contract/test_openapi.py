"""The OpenAPI document is valid, and it has every route that there is and no other."""

from __future__ import annotations

import re
from typing import Any, cast

import httpx
import pytest
from openapi_spec_validator import validate

from gateway import app, errors
from gateway.api.openapi import OPERATIONS, document
from gateway.app import Control
from gateway.metrics import Metrics
from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.router import Router
from gateway.served import Live, Served
from gateway.server import App
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

pytestmark = pytest.mark.anyio


class Anything:
    """In place of everything that routes would use."""

    def __getattr__(self, name: str) -> Any:
        return self


def gateway() -> App:
    thing = cast(Any, Anything())
    live = Live(Served(Loaded(), Router([]), Server()))
    control = Control(thing, thing, thing, thing)
    return app.build(live, cast(Supervisor, thing), Tasks(), Metrics(), control)


def client(asgi: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(cast(Any, asgi)), base_url="http://localhost"
    )


def test_it_is_valid() -> None:
    validate(cast(Any, document()))


def test_it_has_every_route_and_no_other() -> None:
    routes = cast(Any, gateway())._routes.routes
    paths = {re.sub(r":\w+}", "}", route.path) for route in routes}
    assert {operation.path for operation in OPERATIONS} == paths


async def test_routes_take_the_methods_that_it_says() -> None:
    methods: dict[str, set[str]] = {}
    for operation in OPERATIONS:
        methods.setdefault(operation.path, set()).add(operation.method.upper())
    async with client(gateway()) as asking:
        for path, expected in methods.items():
            answer = await asking.patch(re.sub(r"{\w+}", "x", path))
            assert answer.status_code == 405
            allowed = {method.strip() for method in answer.headers["allow"].split(",")}
            assert allowed - {"HEAD"} == expected, path


def kinds(kind: type[errors.GatewayError]) -> set[type[errors.GatewayError]]:
    return {kind}.union(*(kinds(sub) for sub in kind.__subclasses__()))


def test_it_has_the_status_of_every_error() -> None:
    told = {kind.status for kind in kinds(errors.GatewayError)}
    for methods in document()["paths"].values():
        for operation in methods.values():
            known = {int(status) for status in operation["responses"]}
            assert told - known <= {503}
            assert known & {503, 529}


async def test_it_is_served() -> None:
    async with client(gateway()) as asking:
        answer = await asking.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == document()
