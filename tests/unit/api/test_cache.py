"""The routes of caches beside a reload: a model that is removed meanwhile is left out."""

from __future__ import annotations

import errno
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gateway.api.cache import Caches
from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.router import Router
from gateway.security.keys import LOCAL
from gateway.served import Live, Served
from gateway.supervisor import prompt_folders
from gateway.supervisor.prompt_folders import Files
from tests.harness.in_process import InProcess, in_process, scripted_model

pytestmark = pytest.mark.anyio

A, B = scripted_model("a"), scripted_model("b")


async def asked(rig: InProcess, route: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answer of a route during which `b` is removed."""
    caches = Caches(Live(Served(Loaded(), Router([A, B]), Server())), rig.supervisor)
    sent: list[MutableMapping[str, Any]] = []

    def look(folder: Path | None) -> Files:
        return Files()

    async def beside(work: Any, *args: Any) -> Any:
        rig.reload((A,), standby=0)
        return work(*args)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    monkeypatch.setattr(prompt_folders, "count", look)
    monkeypatch.setattr("gateway.api.cache.asyncio.to_thread", beside)
    scope = {"state": {"access": LOCAL}, "query_string": b"", "headers": []}
    await getattr(caches, route)(scope, receive, send)
    assert sent[0]["status"] == 200
    body: dict[str, Any] = json.loads(b"".join(message.get("body", b"") for message in sent))
    return body


async def test_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process((A, B), 2**34) as rig:
        body = await asked(rig, "stats", monkeypatch)
    assert [model["name"] for model in body["models"]] == ["a"]


async def test_clearing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process((A, B), 2**34) as rig:
        body = await asked(rig, "clear", monkeypatch)
    assert (body["status"], body["rewarm_scheduled"]) == ("cleared", False)


async def test_files_that_cannot_be_removed_are_told_by_their_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(folder: Path | None) -> Files:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(prompt_folders, "clear", fails)
    async with in_process((A, B), 2**34) as rig:
        body = await asked(rig, "clear", monkeypatch)
    assert body["status"] == "partly cleared"
    told = {model["error"] for model in body["models"]}
    assert told == {"its files cannot be removed: Read-only file system"}
