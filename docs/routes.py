"""The routes for the tables: from the OpenAPI document, with rights from the route table. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from gateway import app
from gateway.api.openapi import OPERATIONS
from gateway.app import Control
from gateway.metrics import Metrics
from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.router import Router
from gateway.security.gate import OPEN, PAGES
from gateway.served import Live, Served
from gateway.supervisor.tasks import Tasks


class _Anything:
    """In place of everything that routes would use."""

    def __getattr__(self, name: str) -> Any:
        return self


def rules() -> dict[str, app.Rule]:
    """What each path of the route table asks of a key."""
    thing = cast(Any, _Anything())
    live = Live(Served(Loaded(), Router([]), Server()))
    built = app.build(live, thing, Tasks(), Metrics(), Control(thing, thing, thing, thing))
    found = cast(Any, built)._routes.routes
    return {re.sub(r":\w+}", "}", route.path): cast(Any, route.endpoint)._rule for route in found}


def routes() -> Iterator[tuple[str, str, str]]:
    """Method and path, what it does, and the right that a key needs; in the document's order."""
    by_path = rules()
    for operation in OPERATIONS:
        query = f"?{'&'.join(f'{name}=' for name in operation.query)}" if operation.query else ""
        yield (
            f"`{operation.method.upper()} {operation.path}{query}`",
            operation.summary,
            _needs(operation.path, by_path[operation.path]),
        )


def _needs(path: str, rule: app.Rule) -> str:
    if path in OPEN or path.startswith(PAGES):
        return "no key"
    return f"`{rule.right}`" if rule.right else "any right"
