"""Keys, browsers and cancelling against a real gateway."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.daemon import (
    CHAT,
    Daemon,
    chat_body,
    command,
    daemon,
    environ,
    registry,
    scripted,
    write,
)

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"

KEYS: list[dict[str, Any]] = [
    {"name": "user", "key": "sk-user-1", "models": ["open*"]},
    {"name": "other", "key": "sk-other-1"},
    {"name": "slow", "key": "sk-slow-1", "rate_limit": 1},
    {"name": "manager", "key": "sk-manager-1", "rights": ["manage"]},
    {"name": "root", "key": "sk-root-1", "rights": ["infer", "manage", "admin"]},
]


def guarded(*models: dict[str, Any], **server: Any) -> dict[str, Any]:
    named = models or (scripted("open"), scripted("closed"))
    return registry(*named, server={"api_keys": KEYS, **server})


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{name}-1"}


async def ask(
    gateway: Daemon, method: str, path: str, headers: dict[str, str], **options: Any
) -> httpx.Response:
    async with gateway.client() as client:
        return await client.request(method, path, headers=headers, **options)


def messages_body(model: str) -> dict[str, Any]:
    return {**chat_body(model), "max_tokens": 5}


# --- keys -----------------------------------------------------------------------------------------


async def test_a_key_is_asked_for_and_refusals_are_in_the_dialect(tmp_path: Path) -> None:
    with daemon(guarded(), tmp_path) as gateway:
        for headers in ({}, {"authorization": "Bearer sk-wrong-1"}, {"x-api-key": "sk-wrong-1"}):
            answer = await ask(gateway, "POST", CHAT, headers, json=chat_body("open"))
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["error"]["code"] == "invalid_api_key"
            answer = await ask(gateway, "POST", MESSAGES, headers, json=messages_body("open"))
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.json()["request_id"] == answer.headers["request-id"]
        for headers in (bearer("user"), {"x-api-key": "sk-user-1"}):
            answer = await ask(gateway, "POST", CHAT, headers, json=chat_body("open"))
            assert answer.status_code == 200
        assert (await ask(gateway, "GET", "/nothing", {})).status_code == 401
        for path in ("/livez", "/readyz", "/health", "/openapi.json", "/", "/web/app.js"):
            assert (await ask(gateway, "GET", path, {})).status_code == 200
        for path in ("/v1/status", "/v1/requests", "/admin/logs", "/admin/events"):
            assert (await ask(gateway, "GET", path, {})).status_code == 401
        for path in ("/", "/api/hello"):
            assert (await ask(gateway, "HEAD", path, {})).status_code in (200, 404)
        assert (await ask(gateway, "GET", "/health", {})).json()["models"] == 0
        assert "key=user" in gateway.log
        assert "sk-" not in gateway.log


async def test_a_key_sees_and_uses_its_models_alone(tmp_path: Path) -> None:
    with daemon(guarded(), tmp_path) as gateway:
        user = bearer("user")
        listed = (await ask(gateway, "GET", "/v1/models", user)).json()["data"]
        assert [model["id"] for model in listed] == ["open"]
        status = (await ask(gateway, "GET", "/v1/status", user)).text
        assert "closed" not in status
        assert (await ask(gateway, "POST", "/admin/reload", bearer("root"))).status_code == 200
        assert (await ask(gateway, "GET", "/v1/status", user)).json()["last_reload"] is None
        assert "sk-" not in status
        for path in ("/v1/models/closed", "/v1/models/closed/events"):
            assert (await ask(gateway, "GET", path, user)).status_code == 403
        answer = await ask(gateway, "POST", CHAT, user, json=chat_body("closed"))
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
        answer = await ask(gateway, "POST", CHAT, user, json=chat_body("close"))
        assert answer.status_code == 404
        assert "closed" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/models/open/load", {"manager", "root"}),
        ("POST", "/v1/models/open/unload", {"manager", "root"}),
        ("PUT", "/v1/models/open/pin", {"manager", "root"}),
        ("DELETE", "/v1/models/open/pin", {"manager", "root"}),
        ("GET", "/admin/explain?model=open", {"root"}),
        ("POST", "/admin/reload", {"root"}),
        ("GET", "/metrics", {"user", "manager", "root"}),
    ],
)
async def test_rights(tmp_path: Path, method: str, path: str, allowed: set[str]) -> None:
    with daemon(guarded(), tmp_path) as gateway:
        for name in ("user", "manager", "root"):
            answer = await ask(gateway, method, path, bearer(name))
            assert (answer.status_code in (200, 202)) == (name in allowed), answer.text
            assert answer.status_code in (200, 202, 403)
            assert "sk-" not in answer.text
        assert (await ask(gateway, method, path, {})).status_code == 401


async def test_a_rate_limit_is_429_and_says_when(tmp_path: Path) -> None:
    with daemon(guarded(), tmp_path) as gateway:
        first = await ask(gateway, "POST", CHAT, bearer("slow"), json=chat_body("open"))
        second = await ask(gateway, "POST", CHAT, bearer("slow"), json=chat_body("open"))
        third = await ask(gateway, "POST", MESSAGES, bearer("slow"), json=messages_body("open"))
        assert [a.status_code for a in (first, second, third)] == [200, 429, 429]
        assert 0 < int(second.headers["retry-after"]) <= 60
        assert second.json()["error"]["code"] == "rate_limit_exceeded"
        assert third.json()["error"]["type"] == "rate_limit_error"
        assert (await ask(gateway, "GET", "/v1/models", bearer("slow"))).status_code == 200


async def test_a_key_may_be_kept_from_evicting(tmp_path: Path) -> None:
    document = guarded(scripted("a", 6), scripted("b", 6))
    document["server"]["api_keys"] = [
        {"name": "guest", "key": "sk-guest-1", "may_evict": False},
        {"name": "other", "key": "sk-other-1"},
    ]
    with daemon(document, tmp_path) as gateway:
        assert (await _chat(gateway, "other", "a")).status_code == 200
        refused = await _chat(gateway, "guest", "b")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_capacity")
        assert (await _chat(gateway, "other", "b")).status_code == 200


async def _chat(gateway: Daemon, key: str, model: str) -> httpx.Response:
    return await ask(gateway, "POST", CHAT, bearer(key), json=chat_body(model))


async def test_a_reload_takes_keys_over_and_shows_none(tmp_path: Path) -> None:
    with daemon(guarded(), tmp_path) as gateway:
        document = guarded()
        document["server"]["api_keys"] = [*KEYS[1:], {"name": "fresh", "key": "sk-fresh-1"}]
        write(document, tmp_path)
        answer = await ask(gateway, "POST", "/admin/reload", bearer("root"))
        changed = {field["key"]: field["new"] for field in answer.json()["plan"]["server"]}
        assert changed == {"api_keys.user": None, "api_keys.fresh": "set"}
        assert (await _chat(gateway, "user", "open")).status_code == 401
        assert (await _chat(gateway, "fresh", "open")).status_code == 200
        status = (await ask(gateway, "GET", "/v1/status", bearer("root"))).text
        assert "sk-" not in answer.text + status + gateway.log


def test_a_listener_for_others_wants_keys(tmp_path: Path) -> None:
    write(registry(scripted("a")), tmp_path)
    argv = [sys.executable, *command(tmp_path, "--host", "0.0.0.0")]
    ended = subprocess.run(
        argv, env=environ(tmp_path, {}), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 78
    assert "0.0.0.0 can be reached from other machines and there are no keys" in ended.stderr


async def test_the_operator_may_do_without_keys(tmp_path: Path) -> None:
    open_to_all = {"MLX_GATEWAY_HOST": "0.0.0.0", "MLX_GATEWAY_ALLOW_INSECURE": "true"}
    with daemon(registry(scripted("a")), tmp_path, open_to_all) as gateway:
        assert (await ask(gateway, "GET", "/v1/models", {})).status_code == 200


# --- browsers -------------------------------------------------------------------------------------


async def test_what_foreign_pages_send_is_refused(tmp_path: Path) -> None:
    document = registry(scripted("a"), server={"cors_origins": ["https://chat.example"]})
    with daemon(document, tmp_path) as gateway:
        body = chat_body("a")
        for origin in ("https://evil.example", "null"):
            answer = await ask(gateway, "POST", CHAT, {"origin": origin}, json=body)
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "origin_not_allowed"
            assert "access-control-allow-origin" not in answer.headers
        own = await ask(gateway, "POST", CHAT, {"origin": gateway.url}, json=body)
        assert own.status_code == 200
        page = {"origin": "https://chat.example"}
        answer = await ask(gateway, "POST", CHAT, page, json=body)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        missing = await ask(gateway, "POST", CHAT, page, json=chat_body("nothing"))
        assert missing.status_code == 404
        assert missing.headers["access-control-allow-origin"] == "https://chat.example"


async def test_a_preflight_is_answered_without_a_key_and_only_for_allowed_pages(
    tmp_path: Path,
) -> None:
    asked = {"access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization"
    with daemon(guarded(cors_origins=["https://chat.example"]), tmp_path) as gateway:
        good = await ask(gateway, "OPTIONS", CHAT, {**asked, "origin": "https://chat.example"})
        assert good.status_code == 204
        assert good.headers["access-control-allow-headers"] == "authorization"
        bad = await ask(gateway, "OPTIONS", CHAT, {**asked, "origin": "https://evil.example"})
        assert bad.status_code == 400
        assert "access-control-allow-origin" not in bad.headers


async def test_rebound_names_and_forms_are_refused(tmp_path: Path) -> None:
    with daemon(registry(scripted("a")), tmp_path) as gateway:
        answer = await ask(gateway, "GET", "/v1/models", {"host": "evil.example"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")
        local = await ask(gateway, "GET", "/v1/models", {"host": "localhost:1"})
        assert local.status_code == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            form = {"content-type": kind}
            answer = await ask(gateway, "POST", CHAT, form, content=b'{"model": "a"}')
            assert answer.status_code == 415
            assert "Content-Type: application/json" in answer.json()["error"]["message"]
            answer = await ask(gateway, "POST", MESSAGES, form, content=b'{"model": "a"}')
            assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_who_still_sends_a_body_sees_why_it_is_refused(tmp_path: Path) -> None:
    with daemon(guarded(), tmp_path) as gateway:
        body = {**chat_body("open"), "user": "x" * 4_000_000}
        answer = await ask(gateway, "POST", CHAT, {}, json=body)
        assert answer.status_code == 401


# --- cancelling -----------------------------------------------------------------------------------


def endless() -> dict[str, Any]:
    return scripted("open", deltas=100_000, tokens_per_s=50)


@pytest.mark.parametrize("by", ["request id", "answer id"])
@pytest.mark.parametrize(("path", "method"), [(CHAT, "POST"), (MESSAGES, "DELETE")])
async def test_a_stream_is_cancelled_by_either_id(
    tmp_path: Path, by: str, path: str, method: str
) -> None:
    body = {**messages_body("open"), "max_tokens": 90_000, "stream": True}
    with daemon(guarded(endless()), tmp_path) as gateway:
        async with (
            gateway.client() as client,
            client.stream("POST", path, json=body, headers=bearer("user")) as response,
        ):
            lines = response.aiter_lines()
            first = ""
            while not first.startswith("data: "):
                first = await anext(lines)
            id_ = response.headers["x-request-id"]
            if by == "answer id":
                id_ = first.split('"id":"')[1].split('"')[0]
            target = f"/v1/requests/{id_}" + ("/cancel" if method == "POST" else "")
            stranger = await ask(gateway, method, target, bearer("other"))
            assert stranger.status_code == 404
            answer = await ask(gateway, method, target, bearer("user"))
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
            rest = [line async for line in lines]
        assert any('"code":"cancelled"' in line for line in rest)
        assert "data: [DONE]" not in rest
        assert (await ask(gateway, method, target, bearer("user"))).status_code == 404
        await _until_idle(gateway)


async def test_a_manager_ends_the_requests_of_others(tmp_path: Path) -> None:
    body = {**chat_body("open"), "stream": True}
    with daemon(guarded(endless()), tmp_path) as gateway:
        async with (
            gateway.client() as client,
            client.stream("POST", CHAT, json=body, headers=bearer("user")) as response,
        ):
            target = f"/v1/requests/{response.headers['x-request-id']}"
            assert (await ask(gateway, "DELETE", target, bearer("manager"))).status_code == 200
            assert b'"code":"cancelled"' in await response.aread()
        assert (await ask(gateway, "DELETE", target, bearer("manager"))).status_code == 404
        await _until_idle(gateway)


async def test_a_client_may_name_its_request_and_so_end_an_answer_it_waits_for(
    tmp_path: Path,
) -> None:
    async def cancelled(gateway: Daemon) -> None:
        for _ in range(500):
            answer = await ask(gateway, "DELETE", "/v1/requests/my-request.1", bearer("user"))
            if answer.status_code == 200:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the request was never there")

    with daemon(guarded(endless()), tmp_path) as gateway:
        headers = {**bearer("user"), "x-request-id": "my-request.1"}
        waiting = ask(gateway, "POST", CHAT, headers, json=chat_body("open"))
        answer, _ = await asyncio.gather(waiting, cancelled(gateway))
        assert (answer.status_code, answer.json()["error"]["code"]) == (499, "cancelled")
        assert answer.headers["x-request-id"] == "my-request.1"
        assert "my-request.1" in gateway.log
        unsafe = await ask(gateway, "GET", "/livez", {"x-request-id": "a b"})
        assert unsafe.headers["x-request-id"].startswith("req_")
        await _until_idle(gateway)


async def _until_idle(gateway: Daemon) -> None:
    """The engine has confirmed, so no lease is left."""
    for _ in range(500):
        status = (await ask(gateway, "GET", "/v1/status", bearer("root"))).json()
        if all(not model["leases"] for model in status["models"]):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the lease was never released")
