"""The routes that operate models: what they answer, and what then is so."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.daemon import Daemon, daemon, registry, scripted, write

pytestmark = pytest.mark.anyio

SLASHED = "org/model"


async def ask(
    gateway: Daemon, method: str, path: str, status: int, **options: Any
) -> dict[str, Any]:
    """The JSON of an answer that has to have this status."""
    async with gateway.client() as client:
        answer = await client.request(method, path, **options)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


# --- load -----------------------------------------------------------------------------------------


async def test_a_load_is_accepted_and_then_is_there(tmp_path: Path) -> None:
    with daemon(registry(scripted(SLASHED, load_s=0.5)), tmp_path) as gateway:
        async with gateway.client() as client:
            answer = await client.post("/v1/models/org%2Fmodel/load")
            assert answer.status_code == 202
            assert answer.headers["location"] == "/v1/models/org/model/events"
            body = answer.json()
            assert (body["id"], body["model"], body["state"]) == (SLASHED, SLASHED, "loading")
            again = await client.post("/v1/models/org/model/load", content=b"{}")
            assert again.status_code == 202
            await gateway.until_model(SLASHED, state="ready")
            done = await client.post("/v1/models/org/model/load")
            assert (done.status_code, done.json()["state"]) == (200, "ready")
            assert "location" not in done.headers
        assert (await gateway.model(SLASHED))["loads"] == 1


async def test_a_variant_acts_on_its_base(tmp_path: Path) -> None:
    document = registry(scripted("base"), {"name": "variant", "of": "base"})
    with daemon(document, tmp_path) as gateway:
        body = await ask(gateway, "POST", "/v1/models/variant/load?wait=true", 200)
        assert (body["id"], body["model"], body["state"]) == ("variant", "base", "ready")
        pinned = await ask(gateway, "PUT", "/v1/models/variant/pin", 200)
        assert (pinned["model"], pinned["pinned"], pinned["pinned_until"]) == ("base", True, None)


async def test_waiting_for_a_load_that_fails_and_one_that_succeeds(tmp_path: Path) -> None:
    document = registry(scripted("a", load_s=0.2, fail_loads=1))
    with daemon(document, tmp_path) as gateway:
        error = (await ask(gateway, "POST", "/v1/models/a/load?wait=true", 503))["error"]
        assert error["code"] == "load_failed"
        assert "scripted" in error["message"]
        body = await ask(gateway, "POST", "/v1/models/a/load?wait=1", 200)
        assert body["state"] == "ready"


async def test_a_load_ends_a_back_off(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", fail_loads=2)), tmp_path) as gateway:
        for _ in range(3):  # two fail, the third is too early
            assert (await gateway.chat("a")).json()["error"]["code"] == "load_failed"
        assert (await gateway.model("a"))["loads"] == 2
        await ask(gateway, "POST", "/v1/models/a/load?wait=true", 200)
        assert (await gateway.chat("a")).status_code == 200


async def test_what_cannot_load_is_refused_with_its_reason(tmp_path: Path) -> None:
    document = registry(
        scripted("huge", size_gb=3), {"name": "gone", "path": "/no/such/folder"}, budget_gb=2
    )
    with daemon(document, tmp_path) as gateway:
        for wait in ("", "?wait=true"):
            error = (await ask(gateway, "POST", f"/v1/models/huge/load{wait}", 400))["error"]
            assert error["code"] == "model_too_large"
            error = (await ask(gateway, "POST", f"/v1/models/gone/load{wait}", 503))["error"]
            assert error["code"] == "model_unavailable"
            assert "/no/such/folder" in error["message"]


async def test_a_load_without_room_is_given_up_as_the_policy_says(tmp_path: Path) -> None:
    document = registry(
        scripted("a", tokens_per_s=20, deltas=10_000),
        scripted("b"),
        budget_gb=1,
        contention_policy={"strategy": "wait_then_fail", "wait_timeout_s": 0.5},
    )
    with daemon(document, tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            accepted = await ask(gateway, "POST", "/v1/models/b/load", 202)
            assert accepted["state"] == "unloaded"
            error = (await ask(gateway, "POST", "/v1/models/b/load?wait=true", 503))["error"]
            assert error["code"] == "no_capacity"
            assert "In the way: 'a'" in error["message"]
            assert (await gateway.model("b"))["reason"] == error["message"]


async def test_a_client_that_leaves_does_not_end_the_load(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", load_s=1)), tmp_path) as gateway:
        async with gateway.client() as client:
            waiting = asyncio.create_task(client.post("/v1/models/a/load?wait=true"))
            await gateway.until_model("a", state="loading")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await gateway.until_model("a", state="ready")
        assert "499" in gateway.log


async def test_waiting_for_a_load_ends_when_its_model_is_removed(tmp_path: Path) -> None:
    models = [scripted("a", load_s=30), scripted("b")]
    with daemon(registry(*models), tmp_path) as gateway:
        loading = asyncio.create_task(ask(gateway, "POST", "/v1/models/a/load?wait=true", 404))
        await gateway.until_model("a", state="loading")
        write(registry(models[1]), tmp_path)
        assert (await loading)["error"]["code"] == "model_not_found"


async def test_waiting_for_a_load_ends_with_the_gateway(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", load_s=30)), tmp_path) as gateway:
        loading = asyncio.create_task(ask(gateway, "POST", "/v1/models/a/load?wait=true", 503))
        await gateway.until_model("a", state="loading")
        gateway.signal(signal.SIGTERM)
        assert (await loading)["error"]["code"] == "draining"
        assert gateway.wait() == 0


# --- unload ---------------------------------------------------------------------------------------


async def test_unload_answers_while_it_leaves_and_when_it_is_gone(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", tokens_per_s=20, deltas=10)), tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            body = await ask(gateway, "POST", "/v1/models/a/unload", 202)
            assert (body["state"], body["leases"]) == ("draining", 1)
            await stream.rest()
        assert stream.error is None
        await gateway.until_model("a", state="unloaded")
        body = await ask(gateway, "POST", "/v1/models/a/unload", 200)
        assert (body["state"], body["leases"]) == ("unloaded", 0)
        assert gateway.engines() == []


async def test_unload_ends_a_load_and_tells_who_waits_for_it(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", load_s=20)), tmp_path) as gateway:
        loading = asyncio.create_task(ask(gateway, "POST", "/v1/models/a/load?wait=true", 503))
        await gateway.until_model("a", state="loading")
        waiter = asyncio.create_task(gateway.chat("a"))
        await gateway.until_model("a", waiting=1)
        body = await ask(gateway, "POST", "/v1/models/a/unload", 202)
        assert body["state"] == "unloading"
        answer = await waiter
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "preempted")
        assert (await loading)["error"]["code"] == "no_capacity"


# --- pin ------------------------------------------------------------------------------------------


async def test_a_pin_keeps_a_model_and_its_end_lets_it_go(tmp_path: Path) -> None:
    document = registry(
        scripted("a"), scripted("b"), budget_gb=1, contention_policy={"strategy": "fail"}
    )
    with daemon(document, tmp_path) as gateway:
        await ask(gateway, "POST", "/v1/models/a/load?wait=true", 200)
        body = await ask(gateway, "PUT", "/v1/models/a/pin", 200, json={"expires_in_s": 3600})
        assert body["pinned"] is True
        assert body["pinned_until"] == pytest.approx(time.time() + 3600, abs=60)
        assert (await gateway.model("a"))["pinned_until"] == pytest.approx(
            body["pinned_until"], abs=1
        )
        error = (await gateway.chat("b")).json()["error"]
        assert (error["code"], "pinned" in error["message"]) == ("no_capacity", True)

        body = await ask(gateway, "DELETE", "/v1/models/a/pin", 200)
        assert (body["pinned"], body["pinned_until"]) == (False, None)
        assert (await gateway.chat("b")).status_code == 200


async def test_a_pin_ends_at_its_time(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", ttl_s=0)), tmp_path) as gateway:
        await ask(gateway, "PUT", "/v1/models/a/pin", 200, json={"until": time.time() + 1.5})
        assert (await gateway.model("a"))["state"] == "unloaded"
        assert (await gateway.chat("a")).status_code == 200
        model = await gateway.until_model("a", state="unloaded")
        assert (model["pinned"], model["loads"]) == (False, 1)


async def test_a_pin_of_the_registry_stays(tmp_path: Path) -> None:
    with daemon(registry(scripted("a", pin=True)), tmp_path) as gateway:
        body = await ask(gateway, "DELETE", "/v1/models/a/pin", 200)
        assert (body["pinned"], body["pinned_until"]) == (True, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"expires_in_s": 0}', "expires_in_s"),
        (b'{"expires_in_s": "soon"}', "expires_in_s"),
        (b'{"expires_in_s": 1e300}', "expires_in_s"),
        (b'{"until": 1}', "in the future"),
        (b'{"until": 99999999999, "expires_in_s": 1}', "not both"),
        (b"[]", "object"),
        (b"{", "not valid JSON"),
    ],
)
async def test_a_pin_that_makes_no_sense_is_a_400(
    gateway: Daemon, content: bytes, words: str
) -> None:
    error = (await ask(gateway, "PUT", "/v1/models/a/pin", 400, content=content))["error"]
    assert error["code"] == "invalid_request"
    assert words in error["message"] + str(error["param"])
    assert (await gateway.model("a"))["pinned"] is False


# --- reload ---------------------------------------------------------------------------------------


async def test_a_reload_answers_with_what_it_did(tmp_path: Path) -> None:
    models = [scripted("kept"), scripted("gone")]
    with daemon(registry(*models), tmp_path) as gateway:
        assert (await gateway.chat("kept")).status_code == 200
        assert (await gateway.status())["last_reload"] is None
        unchanged = await ask(gateway, "POST", "/admin/reload", 200)
        assert (unchanged["result"], unchanged["cause"]) == ("unchanged", "POST /admin/reload")

        write(registry(models[0], scripted("new")), tmp_path)
        applied = await ask(gateway, "POST", "/admin/reload", 200)
        assert applied["result"] in ("applied", "unchanged")  # the watcher may have been first
        status = await gateway.until(lambda s: [m["name"] for m in s["models"]] == ["kept", "new"])
        assert status["last_reload"]["result"] in ("applied", "unchanged")
        assert (await gateway.model("kept"))["loads"] == 1


async def test_a_broken_registry_is_a_400_with_every_problem(tmp_path: Path) -> None:
    with daemon(registry(scripted("a")), tmp_path) as gateway:
        (tmp_path / "registry.yaml").write_text("models:\n  - nam: a\nmanger: {}\n")
        body = await ask(gateway, "POST", "/admin/reload", 400)
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert "registry.yaml:" in body["error"]["message"]
        assert "nothing has changed" in body["error"]["message"]
        assert body["result"] == "refused"
        keys = {problem["key"] for problem in body["problems"] if problem["level"] == "error"}
        assert {"manger", "models[0].nam"} <= keys
        assert all(problem["line"] for problem in body["problems"])
        last = (await gateway.status())["last_reload"]
        assert (last["result"], last["plan"]) == ("refused", None)
        assert (await gateway.chat("a")).status_code == 200


# --- what is wrong with a request -----------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with daemon(registry(scripted("a")), tmp_path_factory.mktemp("admin")) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/models/a/load", "POST"),
        ("GET", "/v1/models/a/unload", "POST"),
        ("GET", "/v1/models/a/pin", "PUT, DELETE"),
        ("POST", "/v1/models/a/pin", "PUT, DELETE"),
        ("POST", "/v1/models/a/events", "GET"),
        ("GET", "/admin/reload", "POST"),
        ("POST", "/admin/events", "GET"),
        ("POST", "/admin/explain", "GET, HEAD"),
    ],
)
async def test_the_wrong_method_is_told_the_right_one(
    gateway: Daemon, method: str, path: str, allow: str
) -> None:
    async with gateway.client() as client:
        answer = await client.request(method, path)
    assert answer.status_code == 405, answer.text
    assert sorted(answer.headers["allow"].split(", ")) == sorted(allow.split(", "))
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/models/no/such/load"),
        ("POST", "/v1/models/no-such/unload"),
        ("PUT", "/v1/models/no-such/pin"),
        ("DELETE", "/v1/models/no-such/pin"),
        ("GET", "/v1/models/no-such/events"),
        ("GET", "/admin/explain?model=no-such"),
    ],
)
async def test_an_unknown_model_is_a_404(gateway: Daemon, method: str, path: str) -> None:
    error = (await ask(gateway, method, path, 404))["error"]
    assert error["code"] == "model_not_found"
    assert "did you mean" in error["message"] or "such as a" in error["message"]


async def test_odd_questions_are_400(gateway: Daemon) -> None:
    for method, path in [
        ("GET", "/admin/explain"),
        ("GET", "/admin/explain?model="),
        ("GET", "/admin/explain?" + "&".join(f"m{number}=1" for number in range(200))),
        ("POST", "/v1/models/a/load?wait=perhaps"),
    ]:
        error = (await ask(gateway, method, path, 400))["error"]
        assert error["code"] == "invalid_request"
    answer: httpx.Response
    async with gateway.client() as client:
        answer = await client.post("/v1/models/a/load", content=b" " * 70_000)
    assert answer.status_code == 413
