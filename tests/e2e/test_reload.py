"""A new registry in a running gateway: what changes, what goes on, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.registry.schema import (
    ContentionPolicy,
    Defaults,
    Entry,
    Manager,
    Server,
    fields_of,
    reload_of,
)
from tests.harness.daemon import Daemon, daemon, registry, reply, scripted
from tests.harness.edits import Editor, How
from tests.harness.observe import metric

pytestmark = pytest.mark.anyio

FIXTURES = Path(__file__).parents[1] / "fixtures"

# Every live key of an entry but those of sizes, which scripted engines take from their script.
LIVE_ENTRY: dict[str, Any] = {
    "tags": ["fast"],
    "pin": True,
    "preload": True,
    "ttl_s": 600,
    "priority": "high",
    "max_concurrency": 3,
    "max_queue": 5,
    "continuous_batching": True,
    "estimated_memory_gb": 2,
    "kv_memory_gb": 0.5,
    "prompt_cache_gb": 0.25,
    "gpu_memory_utilization": 0.9,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "max_tokens": 4,
    "chat_template_kwargs": {"enable_thinking": False},
    "tool_parser": "hermes",
    "reasoning_parser": "qwen3",
    "stream_interval": 2,
    "specprefill": True,
    "specprefill_threshold": 10,
    "specprefill_keep_pct": 0.5,
    "specprefill_draft_model": "draft",
    "warm_prompts": [[{"role": "system", "content": "You are an agent."}]],
    "audio_transcriber": "hearing",
    "aliases": ["other-name"],
    "description": "another one",
}
LIVE_MANAGER: dict[str, Any] = {
    "memory_budget_gb": 12,
    "contention_policy": {
        "strategy": "wait_then_preempt",
        "wait_timeout_s": 33,
        "preempt_after_s": 7,
    },
    "min_resident_s": 1,
    "max_wait_s": 9,
    "drain_max_s": 8,
    "load_concurrency": 2,
    "max_engines": 5,
    "load_timeout_s": 60,
    "hang_timeout_s": 61,
    "first_step_timeout_s": 62,
    "preempt_grace_s": 1,
    "standby": 0,
    "prefill_slots": 2,
}
LIVE_SERVER: dict[str, Any] = {
    "drain_s": 3,
    "commit_after_s": 4,
    "heartbeat_s": 5,
    "write_stall_s": 6,
    "max_body_mb": 2,
    "max_upload_mb": 3,
    "request_timeout_s": 300,
    "api_keys": [{"name": "tester", "key": "a-key-for-a-test", "rights": ["infer", "admin"]}],
    "allow_insecure": True,
    "metrics_auth": False,
    "cors_origins": ["https://chat.example"],
    "hosts": ["ai.lan"],
    "media_roots": ["/srv/images"],
    "log_level": "debug",
    "log_format": "json",
    "log_prompts": True,
    "prevent_sleep": False,
}
KEY = {"Authorization": "Bearer a-key-for-a-test"}
BROKEN = {
    "syntax": "models: [",
    "unknown key": "models:\n- {name: a, engine: scripted, prelod: true}\n",
    "duplicate name": "models:\n- {name: a, engine: scripted}\n- {name: a, engine: scripted}\n",
    "variant of nothing": "models:\n- {name: a, of: nobody}\n",
    "wrong type": "manager: {memory_budget_gb: lots}\nmodels: []\n",
    "not text": "\0\0\0",
    "a list": "- a\n",
}


async def reload(gateway: Daemon) -> httpx.Response:
    async with gateway.client() as client:
        return await client.post("/admin/reload")


async def reloads(gateway: Daemon) -> dict[str, float]:
    """How many there were, by outcome."""
    return metric((await gateway.get("/metrics")).text, "reloads_total", label="outcome")


async def until_reloaded(gateway: Daemon, before: dict[str, float]) -> dict[str, float]:
    """The counts, once there is one more reload than before."""
    async with asyncio.timeout(30):
        while (now := await reloads(gateway)) == before:
            await gateway.status()
    return now


def missing(part: Any, given: dict[str, Any]) -> set[str]:
    """Live keys of a part of the schema that a table above forgets."""
    return {key for key in fields_of(part) if reload_of(part, key) == "live"} - given.keys()


async def test_live_changes_of_every_kind_touch_no_engine(tmp_path: Path) -> None:
    assert missing(Entry, LIVE_ENTRY) | missing(Defaults, LIVE_ENTRY) == set()
    assert missing(Manager, LIVE_MANAGER) | missing(Server, LIVE_SERVER) == set()
    assert set(LIVE_MANAGER["contention_policy"]) == set(fields_of(ContentionPolicy))
    hearing = scripted("hearing", kind="transcription")
    document = registry(scripted("a", tokens_per_s=20, deltas=60), scripted("b"), hearing)
    with daemon(document, tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            await gateway.chat("b")
            pids = [(await gateway.model(name))["pid"] for name in ("a", "b")]
            changed = copy.deepcopy(document)
            for entry in changed["models"][:2]:
                entry.update(LIVE_ENTRY, aliases=[f"{entry['name']}-too"])
            changed |= {"manager": LIVE_MANAGER, "server": LIVE_SERVER}
            Editor(changed, tmp_path / "registry.yaml").put(yaml.safe_dump(changed))
            answer = await reload(gateway)
            assert answer.status_code == 200, answer.text
            plan = answer.json()["plan"]
            assert (plan["changed"], plan["restarted"]) == (["a", "b"], [])
            assert (await gateway.chat("a-too")).status_code == 401
            short = await gateway.chat("a-too", headers=KEY)
            assert short.json()["choices"][0]["message"]["content"] == reply(4)
            await stream.rest()
        stream.assert_complete(reply(60))
        async with gateway.client() as client:
            status = (await client.get("/v1/status", headers=KEY)).json()
        for model, name, pid in zip(status["models"][:2], ("a", "b"), pids, strict=True):
            assert (model["name"], model["pid"], model["loads"], model["pinned"]) == (
                name,
                pid,
                1,
                True,
            )
            wanted = LIVE_ENTRY | {"aliases": [f"{name}-too"]}
            assert {key: model["entry"][key] for key in wanted} == wanted
        assert status["memory"]["budget_bytes"] == 12 * 2**30
        too_large = await gateway.chat("a", "x" * (3 * 2**20), headers=KEY)
        assert too_large.status_code == 413
        assert '"level":"DEBUG"' in gateway.log


async def test_one_change_that_needs_a_restart_restarts_one_engine(tmp_path: Path) -> None:
    document = registry(*(scripted(name, deltas=3) for name in ("a", "b", "c")))
    editor = Editor(document, tmp_path / "registry.yaml")
    with daemon(document, tmp_path) as gateway:
        for name in ("a", "b", "c"):
            assert (await gateway.chat(name)).status_code == 200
        before = {model["name"]: model["pid"] for model in (await gateway.status())["models"]}
        changed = copy.deepcopy(document)
        changed["models"][1]["scripted"]["deltas"] = 5
        editor.put(yaml.safe_dump(changed))
        plan = (await reload(gateway)).json()["plan"]
        assert (plan["restarted"], plan["kept"]) == (["b"], ["a", "c"])
        answer = await gateway.chat("b")
        assert answer.json()["choices"][0]["message"]["content"] == reply(5)
        after = {model["name"]: model["pid"] for model in (await gateway.status())["models"]}
        assert (after["a"], after["c"]) == (before["a"], before["c"])
        assert after["b"] not in before.values()


async def test_an_invalid_file_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    document = registry(scripted("a", tokens_per_s=20, deltas=40))
    editor = Editor(document, tmp_path / "registry.yaml")
    with daemon(document, tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            before = await gateway.model("a")
            for number, text in enumerate(BROKEN.values(), 1):
                editor.put(text)
                answer = await reload(gateway)
                assert answer.status_code == 400
                assert answer.json()["problems"]
                last = (await gateway.status())["last_reload"]
                assert (last["result"], last["plan"]) == ("refused", None)
                assert last["problems"] == answer.json()["problems"]
                assert (await reloads(gateway))["refused"] >= number
            await stream.rest()
        stream.assert_complete(reply(40))
        model = await gateway.model("a")
        assert {**model, **{key: before[key] for key in CHANGES}} == before
        assert (await gateway.chat("a", max_tokens=2)).status_code == 200
        assert len(re.findall(r"ERROR gateway.models reload: refused", gateway.log)) >= len(BROKEN)


CHANGES = frozenset({"leases", "running", "idle_s", "measured", "measured_bytes", "prompt_cache"})


async def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    document = registry(scripted("a"))
    with daemon(document, tmp_path) as gateway:
        text = "manager: {memory_budget: 3, max_engines: 0}\nmodels:\n- {name: a, prelod: 1}\n"
        Editor(document, tmp_path / "registry.yaml").put(text)
        answer = (await reload(gateway)).json()
        assert {problem["key"] for problem in answer["problems"]} >= {
            "manager.memory_budget",
            "manager.max_engines",
            "models[0].prelod",
        }
        assert answer["error"]["code"] == "invalid_request"
        assert (await gateway.chat("a")).status_code == 200


@pytest.mark.parametrize("how", ["write", "rename", "symlink"])
async def test_a_save_is_noticed_however_it_is_made(tmp_path: Path, how: How) -> None:
    document = registry(scripted("a"))
    editor = Editor(document, tmp_path / "registry.yaml")
    with daemon(document, tmp_path) as gateway:
        for name in ("b", "c"):  # twice: a link or a folder may be another after the first time
            before = await reloads(gateway)
            editor.put(yaml.safe_dump(registry(scripted("a"), scripted(name))), how)
            await until_reloaded(gateway, before)
            assert (await gateway.chat(name)).status_code == 200
        assert await reloads(gateway) == {"applied": 2}


async def test_a_file_that_is_gone_for_a_moment_is_no_change(tmp_path: Path) -> None:
    document = registry(scripted("a"))
    path = tmp_path / "registry.yaml"
    with daemon(document, tmp_path) as gateway:
        path.rename(path.with_suffix(".away"))
        async with asyncio.timeout(30):
            while "is gone or unreadable" not in gateway.log:
                assert (await gateway.chat("a")).status_code == 200
        path.write_text(yaml.safe_dump(registry(scripted("a"), scripted("b"))))
        await until_reloaded(gateway, {})
        assert await reloads(gateway) == {"applied": 1}
        assert (await gateway.chat("b")).status_code == 200


async def test_hangup_reloads(tmp_path: Path) -> None:
    with daemon(registry(scripted("a")), tmp_path) as gateway:
        gateway.signal(signal.SIGHUP)
        assert await until_reloaded(gateway, {}) == {"unchanged": 1}
        last = (await gateway.status())["last_reload"]
        assert (last["result"], last["cause"]) == ("unchanged", "SIGHUP")


async def test_many_reloads_at_once_end_well(tmp_path: Path) -> None:
    document = registry(scripted("a", tokens_per_s=40, deltas=60))
    with daemon(document, tmp_path) as gateway:
        async with gateway.stream("a") as stream:
            await stream.until_text()
            changed = registry(scripted("a", tokens_per_s=40, deltas=60), scripted("b"))
            Editor(document, tmp_path / "registry.yaml").put(yaml.safe_dump(changed))
            answers = await asyncio.gather(*(reload(gateway) for _ in range(8)))
            results = sorted(answer.json()["result"] for answer in answers)
            assert results == ["applied"] + ["unchanged"] * 7
            await stream.rest()
        stream.assert_complete(reply(60))


async def test_variants_and_aliases_come_and_go_without_a_load(tmp_path: Path) -> None:
    base = scripted("base", deltas=20)
    editor = Editor(registry(base), tmp_path / "registry.yaml")

    async def served(name: str) -> str:
        answer = await gateway.chat(name)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    with daemon(registry(base), tmp_path) as gateway:
        assert await served("base") == reply(20)
        short = {"name": "short", "of": "base", "max_tokens": 3, "aliases": ["brief"]}
        editor.put(yaml.safe_dump(registry(base | {"aliases": ["b"]}, short)))
        plan = (await reload(gateway)).json()["plan"]
        assert (plan["added"], plan["changed"], plan["restarted"]) == (["short"], ["base"], [])
        texts = [await served(name) for name in ("base", "b", "short", "brief")]
        assert texts == [reply(20), reply(20), reply(3), reply(3)]

        editor.put(yaml.safe_dump(registry(base, short | {"max_tokens": 5, "aliases": []})))
        assert (await reload(gateway)).json()["plan"]["changed"] == ["base", "short"]
        assert await served("short") == reply(5)
        assert [(await gateway.chat(name)).status_code for name in ("b", "brief")] == [404, 404]

        editor.put(yaml.safe_dump(registry(base)))
        assert (await reload(gateway)).json()["plan"]["removed"] == ["short"]
        assert (await gateway.chat("short")).status_code == 404
        assert (await gateway.model("base"))["loads"] == 1


async def test_a_key_of_the_listener_is_reported_and_the_rest_applied(tmp_path: Path) -> None:
    document = registry(scripted("a"))
    with daemon(document, tmp_path) as gateway:
        changed = registry(scripted("a"), scripted("b"), server={"host": "::1"})
        Editor(document, tmp_path / "registry.yaml").put(yaml.safe_dump(changed))
        plan = (await reload(gateway)).json()["plan"]
        assert plan["needs_service_restart"] == ["server.host"]
        assert (await gateway.chat("b")).status_code == 200


async def test_a_model_whose_files_appear_becomes_available(tmp_path: Path) -> None:
    folder = tmp_path / "volume" / "model"
    document = registry(scripted("a"), {"name": "late", "path": str(folder)})
    with daemon(document, tmp_path) as gateway:
        assert (await gateway.model("late"))["state"] == "unavailable"
        assert (await gateway.chat("a")).status_code == 200
        answer = await gateway.chat("late")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
        assert answer.headers["x-should-retry"] == "false"
        assert str(folder) in answer.json()["error"]["message"]

        shutil.copytree(FIXTURES / "models" / "scripted-hermes", folder)
        assert (await reload(gateway)).json()["plan"]["restarted"] == ["late"]
        assert (await gateway.model("late"))["state"] == "unloaded"
        assert (await gateway.model("a"))["loads"] == 1

        shutil.rmtree(folder)
        assert (await reload(gateway)).status_code == 200
        assert (await gateway.model("late"))["state"] == "unavailable"

        shutil.copytree(FIXTURES / "models" / "scripted-hermes", folder)
        await gateway.until_model("late", state="unloaded")  # by itself
        assert "the files of late are there" in (await gateway.status())["last_reload"]["cause"]
        assert (await gateway.chat("a")).status_code == 200
        assert (await gateway.model("a"))["loads"] == 1
