"""The log of a running gateway: requests, engines, files, followers, and no secrets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.harness.daemon import (
    WAIT_TIMEOUT_S,
    Daemon,
    chat_body,
    daemon,
    registry,
    script,
    scripted,
)

pytestmark = pytest.mark.anyio

SECRET = "sk-very-secret"
KEYS = [{"name": "root", "key": SECRET, "rights": ["infer", "manage", "admin"]}]
AUTH = {"authorization": f"Bearer {SECRET}"}


async def lines(gateway: Daemon, query: str = "") -> list[dict[str, str]]:
    async with gateway.client() as client:
        answer = await client.get(f"/admin/logs?lines=1000{query}", headers=AUTH)
        found: list[dict[str, str]] = answer.json()["lines"]
        return found


async def test_what_is_logged_and_what_is_not(tmp_path: Path) -> None:
    server = {"api_keys": KEYS, "log_format": "json"}
    document = registry(scripted("a", stderr_flood=3), scripted("b"), server=server)
    with daemon(document, tmp_path) as gateway:
        body = chat_body("a", "tell nobody this prompt")
        async with gateway.client() as client:
            headers = {**AUTH, "x-request-id": "my-request"}
            assert (
                await client.post("/v1/chat/completions", json=body, headers=headers)
            ).is_success
            await client.get(f"/v1/models?key={SECRET}", headers=AUTH)
            forged = await client.post(
                "/v1/chat/completions", json=body, headers={"authorization": "Bearer sk-wrong"}
            )
            assert forged.status_code == 401
        about_a = await lines(gateway, "&model=a")
        assert any(each["source"] == "engine" for each in about_a)
        assert not any(each.get("model") == "b" for each in about_a)
        assert await lines(gateway, "&level=error") == []
        (engine_log,) = (tmp_path / "state" / "logs" / "engines").glob("a.log")
        assert engine_log.stat().st_size > 0
    logged = [json.loads(each) for each in gateway.log.splitlines() if each.startswith("{")]
    (request,) = [each for each in logged if each.get("request_id") == "my-request"]
    assert (request["status"], request["model"], request["key"]) == (200, "a", "root")
    assert request["route"] == "/v1/chat/completions"
    assert request["completion_tokens"] > 0
    assert 0 < request["ttft_s"] <= request["duration_s"]
    assert any("unloaded -> loading" in each["message"] for each in logged)
    everything = gateway.log + engine_log.read_text()
    for secret in (SECRET, "sk-wrong", "tell nobody"):
        assert secret not in everything.replace(f"key={SECRET}", "")


async def test_a_file_instead_of_stderr_and_prompts_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    server = {"log_file": str(path), "log_prompts": True}
    with daemon(registry(scripted("a"), server=server), tmp_path) as gateway:
        assert (await gateway.chat("a", "say this in the log")).status_code == 200
    assert "say this in the log" in path.read_text()
    assert "stopped" in path.read_text()
    assert "POST /v1/chat/completions" not in gateway.log


async def test_followers_see_lines_as_they_are_said(tmp_path: Path) -> None:
    with daemon(registry(scripted("a")), tmp_path) as gateway:
        async with (
            asyncio.timeout(WAIT_TIMEOUT_S),
            gateway.client() as client,
            client.stream("GET", "/admin/logs?follow=1&lines=0&model=a") as response,
        ):
            events = response.aiter_lines()
            assert (await gateway.chat("a", script("x", {"raise": "said by the engine"}))).is_error
            seen = ""
            async for each in events:
                seen += each
                if "unloaded -> loading" in seen and "POST /v1/chat/completions" in seen:
                    break


@pytest.mark.parametrize("query", ["level=loud", "lines=-1", "lines=1000000", "follow=perhaps"])
async def test_wrong_questions(tmp_path: Path, query: str) -> None:
    with daemon(registry(scripted("a")), tmp_path) as gateway:
        assert (await gateway.get(f"/admin/logs?{query}")).status_code == 400
        assert (await gateway.get("/admin/logs?model=nobody")).status_code == 404
