"""Event streams, frame by frame; and when a stream commits to being one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import daemon, registry, reply, script, scripted
from tests.harness.stream import Frames

pytestmark = pytest.mark.anyio


async def test_role_first_then_text_then_one_finish_reason_then_done(tmp_path: Path) -> None:
    with daemon(registry(scripted("model", deltas=3)), tmp_path) as gateway:
        async with gateway.stream("model") as stream:
            assert stream.response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert stream.response.headers["x-request-id"].startswith("req_")
            await stream.rest()
    assert choices(stream) == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "word1 "}, None),
        ({"content": "word2 "}, None),
        ({"content": "word3 "}, None),
        ({}, "stop"),
    ]
    assert stream.done
    assert all("usage" not in frame for frame in stream.frames)
    heads = {(frame["id"], frame["object"], frame["model"]) for frame in stream.frames}
    assert len(heads) == 1
    assert {frame["object"] for frame in stream.frames} == {"chat.completion.chunk"}


async def test_usage_comes_in_a_chunk_of_its_own_and_only_when_asked_for(tmp_path: Path) -> None:
    with daemon(registry(scripted("model", deltas=2)), tmp_path) as gateway:
        async with gateway.stream(
            "model", "three little words", stream_options={"include_usage": True}
        ) as stream:
            await stream.rest()
    *others, last = stream.frames
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert all(frame["usage"] is None for frame in others)
    stream.assert_complete(reply(2))


LIMITS: list[tuple[str, dict[str, Any], str, str]] = [
    ("max_tokens", {"max_tokens": 2}, "word1 word2 ", "length"),
    ("max_completion_tokens", {"max_completion_tokens": 2}, "word1 word2 ", "length"),
    ("both", {"max_completion_tokens": 1, "max_tokens": 2}, "word1 ", "length"),
    ("stop", {"stop": "word3"}, "word1 word2 ", "stop"),
    ("stops", {"stop": ["no such", "d2 w"]}, "word1 wor", "stop"),
    ("none", {}, reply(5), "stop"),
]


@pytest.mark.parametrize(
    ("fields", "text", "reason"), [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS]
)
async def test_limits_and_stops_count_streamed_and_not(
    tmp_path: Path, fields: dict[str, Any], text: str, reason: str
) -> None:
    with daemon(registry(scripted("model", deltas=5)), tmp_path) as gateway:
        async with gateway.stream("model", **fields) as stream:
            (await stream.rest()).assert_complete(text, reason)
        (choice,) = (await gateway.chat("model", **fields)).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)


async def test_characters_that_are_cut_anywhere_arrive_whole(tmp_path: Path) -> None:
    text = script("a ", {"hex": "f09f"}, {"hex": "9880"}, {"token": "<|end|>"}, " b")
    with daemon(registry(scripted("model")), tmp_path) as gateway:
        async with gateway.stream("model", text) as stream:
            (await stream.rest()).assert_complete("a \N{GRINNING FACE} b")


@pytest.mark.parametrize("option", ["load_s", "prefill_s"])
async def test_a_silent_stream_is_kept_alive(tmp_path: Path, option: str) -> None:
    model = scripted("model", deltas=2, **{option: 2.5})
    with daemon(registry(model, server={"heartbeat_s": 0.2}), tmp_path) as gateway:
        async with gateway.stream("model") as stream:
            assert stream.response.headers["content-type"].startswith("text/event-stream")
            (await stream.rest()).assert_complete(reply(2))
    # Committed after 1 s: one heartbeat then, and one for each silent 0.2 s after it.
    assert set(stream.comments) == {": waiting"}
    assert len(stream.comments) >= 3


async def test_heartbeats_can_be_switched_off(tmp_path: Path) -> None:
    model = scripted("model", deltas=2, prefill_s=2)
    with daemon(registry(model, server={"heartbeat_s": 0}), tmp_path) as gateway:
        async with gateway.stream("model") as stream:
            (await stream.rest()).assert_complete(reply(2))
    assert stream.comments == [": waiting"]  # the one that commits


def crowded(commit_after_s: float) -> dict[str, Any]:
    """A model in use, and a policy that lets requests for another wait for a second in vain."""
    return registry(
        scripted("busy", tokens_per_s=20, deltas=100_000),
        scripted("other"),
        budget_gb=1,
        contention_policy={"strategy": "wait_then_fail", "wait_timeout_s": 1},
        server={"commit_after_s": commit_after_s},
    )


async def test_a_refusal_before_the_commit_is_a_status(tmp_path: Path) -> None:
    with daemon(crowded(commit_after_s=60), tmp_path) as gateway:
        async with gateway.stream("busy") as busy:
            await busy.until_text()
            async with gateway.stream("other") as refused:
                assert refused.status == 503
                assert "retry-after" in refused.response.headers
                assert b'"code":"no_capacity"' in await refused.response.aread()


async def test_a_refusal_after_the_commit_is_an_event(tmp_path: Path) -> None:
    with daemon(crowded(commit_after_s=0.2), tmp_path) as gateway:
        async with gateway.stream("busy") as busy:
            await busy.until_text()
            async with gateway.stream("other") as refused:
                assert refused.status == 200
                await refused.rest()
    refused.assert_failed("no_capacity")
    assert refused.comments == [": waiting"]
    assert len(refused.frames) == 1


@pytest.mark.timed  # a load has to fail before a stream commits, which is after a second
@pytest.mark.parametrize(("load_s", "committed"), [(0.0, False), (2.0, True)])
async def test_a_load_that_fails_is_a_status_or_an_event(
    tmp_path: Path, load_s: float, committed: bool
) -> None:
    model = scripted("model", load_s=load_s, fail_loads=1)
    with daemon(registry(model), tmp_path) as gateway:
        async with gateway.stream("model") as stream:
            if committed:
                assert stream.status == 200
                (await stream.rest()).assert_failed("load_failed")
            else:
                assert stream.status == 503
                assert b'"code":"load_failed"' in await stream.response.aread()


async def test_what_only_the_engine_knows_is_still_a_status(tmp_path: Path) -> None:
    with daemon(registry(scripted("model", context_length=3)), tmp_path) as gateway:
        async with gateway.stream("model", "more words than fit") as stream:
            assert stream.status == 400
            assert b'"code":"context_length_exceeded"' in await stream.response.aread()
        answer = await gateway.chat("model", "more words than fit")
        assert answer.status_code == 400


def choices(stream: Frames) -> list[tuple[dict[str, str], str | None]]:
    return [
        (choice["delta"], choice["finish_reason"])
        for frame in stream.frames
        for choice in frame["choices"]
    ]
