"""A client that stops reading costs a bounded amount of memory, and no model its place."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.harness.daemon import daemon, registry, reply, script, scripted
from tests.harness.raw import chat_bytes, read_rest, stalled, stream_in

pytestmark = pytest.mark.anyio

WORDS = 40_000
"""As a stream more than the sockets on the way hold, as text less than the gateway keeps."""

PIECE = "x" * 1500
PIECES = 5_000
"""Together more than the sockets hold and the gateway keeps, which is 4 MiB."""


async def test_a_model_can_leave_while_a_stalled_client_holds_its_answer(tmp_path: Path) -> None:
    document = registry(scripted("long", deltas=WORDS), scripted("other"), budget_gb=1)
    with daemon(document, tmp_path) as gateway:
        with stalled(gateway.port, chat_bytes("long", stream=True)) as client:
            await gateway.until_model("long", leases=0)
            assert (await gateway.chat("other")).status_code == 200
            assert (await gateway.model("long"))["state"] == "unloaded"
            assert "POST /v1/chat/completions 200 model=long" not in gateway.log
            stream = stream_in(client)  # now it reads on, and nothing is missing
        stream.assert_complete(reply(WORDS))


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_stalled_client_is_dropped(tmp_path: Path, streamed: bool) -> None:
    rate = {"tokens_per_s": 1000} if streamed else {}
    document = registry(scripted("model", **rate), server={"write_stall_s": 1})
    text = script(*[PIECE] * PIECES)
    with daemon(document, tmp_path) as gateway:
        with stalled(gateway.port, chat_bytes("model", text, stream=streamed)) as client:
            if streamed:
                await gateway.until_model("model", leases=1)
            await gateway.until(lambda _: "client_too_slow" in gateway.log)
            received = read_rest(client)
        assert b"[DONE]" not in received
        assert received.count(b"x") < PIECES * len(PIECE)
        await gateway.until_model("model", leases=0, running=0)
        assert (await gateway.chat("model", max_tokens=1)).status_code == 200
        assert (await gateway.model("model"))["loads"] == 1


async def test_what_a_stalled_client_may_have_waiting_is_bounded(tmp_path: Path) -> None:
    with daemon(registry(scripted("model")), tmp_path) as gateway:
        text = script(*[PIECE] * PIECES)
        with stalled(gateway.port, chat_bytes("model", text, stream=True)) as client:
            await gateway.until_model("model", leases=0)
            stream = stream_in(client)
        stream.assert_failed("client_too_slow")
        assert len(stream.text) < PIECES * len(PIECE)


async def test_others_on_the_same_model_stream_to_their_end_past_stalled_clients(
    tmp_path: Path,
) -> None:
    endless = script(*[PIECE] * PIECES)
    document = registry(scripted("model", tokens_per_s=2000), server={"write_stall_s": 300})
    with daemon(document, tmp_path) as gateway, contextlib.ExitStack() as held:
        for _ in range(3):
            request = chat_bytes("model", endless, stream=True)
            held.enter_context(stalled(gateway.port, request))
        await gateway.until_model("model", leases=3)
        async with gateway.stream("model", script(*["more "] * 200)) as stream:
            await stream.rest()
        # Nobody has read of the other three meanwhile, and none of them has been dropped.
        stream.assert_complete("more " * 200)
        assert "client_too_slow" not in gateway.log
