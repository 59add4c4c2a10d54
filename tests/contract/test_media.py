"""Images through every dialect: who gets them, who is refused, and that no file of them stays."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.cases import Case, load, run
from tests.harness.daemon import CHAT, Daemon, daemon, registry, scripted
from tests.unit.security.test_images import png

pytestmark = pytest.mark.anyio

PNG = png(8, 8)
IMAGE = base64.b64encode(PNG).decode()
VIDEO = base64.b64encode(b"\0\0\0\x18ftypmp42" + bytes(64)).decode()
AUDIO = base64.b64encode(b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0" + bytes(32)).decode()
URL = f"data:image/png;base64,{IMAGE}"
ASKED = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}]
SHOWN = [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]

MODELS = [
    scripted("eyes", kind="vision", deltas=["A ", "cat."], max_concurrency=32),
    scripted("slow-eyes", kind="vision", deltas=1000, tokens_per_s=5),
    scripted("unasked-eyes", kind="vision"),
    scripted("words"),
    scripted("listener", audio_transcriber="ear", deltas=["Heard."]),
    scripted("deaf-listener", audio_transcriber="words"),
    scripted("ear", kind="transcription", deltas=["a question in words"]),
    scripted("patient", audio_transcriber="slow-ear"),
    scripted("slow-ear", kind="transcription", deltas=1000, tokens_per_s=5),
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    inside, outside = tmp_path_factory.mktemp("inside"), tmp_path_factory.mktemp("outside")
    (inside / "shown.png").write_bytes(PNG)
    (outside / "secret.png").write_bytes(PNG)
    (inside / "link.png").symlink_to(outside / "secret.png")
    folders = {"INSIDE": str(inside), "OUTSIDE": str(outside), "BESIDE": outside.name}
    return {"IMAGE": IMAGE, "VIDEO": VIDEO, "AUDIO": AUDIO, **folders}


@pytest.fixture(scope="module")
def gateway(names: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("gateway")
    media = folder / "state" / "run" / "media"
    media.mkdir(parents=True, mode=0o700)
    (media / "of-an-earlier-life.media").write_bytes(PNG)
    document = registry(*MODELS, server={"media_roots": [names["INSIDE"]], "heartbeat_s": 0.2})
    with daemon(document, folder) as running:
        assert kept(running) == []
        yield running


def kept(gateway: Daemon) -> list[Path]:
    return list((gateway.folder / "state" / "run" / "media").iterdir())


@pytest.mark.parametrize("case", load("media.yaml"), ids=str)
async def test_image(gateway: Daemon, names: Mapping[str, str], case: Case) -> None:
    async with gateway.client() as client:
        await run(case, client, names)
    await gateway.until(lambda _: not kept(gateway))


async def test_a_file_is_there_until_its_client_leaves(gateway: Daemon) -> None:
    body = {"model": "slow-eyes", "messages": ASKED, "stream": True}
    async with gateway.client() as client, client.stream("POST", CHAT, json=body) as answer:
        assert answer.status_code == 200
        (file,) = kept(gateway)
        assert file.read_bytes() == PNG
    await gateway.until(lambda _: not kept(gateway))


async def test_a_response_in_the_background_keeps_it_until_it_is_over(gateway: Daemon) -> None:
    begun = await respond(gateway, model="slow-eyes", input=SHOWN, background=True)
    assert len(kept(gateway)) == 1
    async with gateway.client() as client:
        ended = await client.post(f"/v1/responses/{begun['id']}/cancel")
    assert ended.json()["status"] == "cancelled"
    await gateway.until(lambda _: not kept(gateway))


async def test_a_conversation_goes_on_with_its_images(gateway: Daemon) -> None:
    first = await respond(gateway, model="eyes", input=SHOWN)
    again = {"input": "And now?", "previous_response_id": first["id"]}
    second = await respond(gateway, model="eyes", **again)
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    items = (await gateway.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    assert items[0]["content"] == [{"type": "input_image", "image_url": URL, "detail": "auto"}]
    async with gateway.client() as client:
        body = {"model": "words", "input": "And now?", "previous_response_id": first["id"]}
        refused = await client.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")


async def respond(gateway: Daemon, **body: Any) -> dict[str, Any]:
    async with gateway.client() as client:
        answer: httpx.Response = await client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


async def test_the_list_says_who_sees(gateway: Daemon) -> None:
    cards = (await gateway.get("/v1/models")).json()["data"]
    takes = {card["id"]: card["architecture"]["input_modalities"] for card in cards}
    assert takes["eyes"] == ["text", "image", "video", "audio"]
    assert takes["unasked-eyes"] == ["text", "image", "video"]
    assert takes["words"] == ["text"]


HEARD = [
    {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": AUDIO, "format": "wav"}}],
    }
]


async def test_a_request_can_be_cancelled_while_its_media_are_brought(gateway: Daemon) -> None:
    body = {"model": "patient", "messages": HEARD}
    async with gateway.client() as client:
        asking = asyncio.create_task(
            client.post(CHAT, json=body, headers={"x-request-id": "req_heard"})
        )
        await gateway.until_model("slow-ear", leases=1)
        ended = await client.delete("/v1/requests/req_heard")
        assert ended.status_code == 200, ended.text
        answer = await asking
        assert answer.json()["error"]["code"] == "cancelled"
        again = await client.delete("/v1/requests/req_heard")
    assert again.status_code == 404
    await gateway.until_model("slow-ear", leases=0)
    assert (await gateway.model("patient"))["loads"] == 0
    await gateway.until(lambda _: not kept(gateway))


async def test_a_client_that_leaves_ends_what_is_heard_for_it(gateway: Daemon) -> None:
    body = {"model": "patient", "messages": HEARD}
    async with gateway.client() as client:
        asking = asyncio.create_task(client.post(CHAT, json=body))
        await gateway.until_model("slow-ear", leases=1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await gateway.until_model("slow-ear", leases=0)
    await gateway.until(lambda _: not kept(gateway))


async def test_prompts_with_media_are_counted_by_their_own_engine(gateway: Daemon) -> None:
    loaded = await gateway.chat("eyes")
    assert loaded.status_code == 200
    message = {"role": "user", "content": [*ASKED[0]["content"], {"type": "text", "text": "So?"}]}
    async with gateway.client() as client:
        counted = await client.post("/tokenize", json={"model": "eyes", "messages": [message]})
        assert counted.status_code == 200, counted.text
        told = await client.post(
            "/v1/messages/count_tokens",
            json={
                "model": "eyes",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": URL}},
                            {"type": "text", "text": "So?"},
                        ],
                    }
                ],
            },
        )
        assert told.json() == {"input_tokens": 2}
        unloaded = await client.post(
            "/tokenize", json={"model": "unasked-eyes", "messages": [message]}
        )
    assert unloaded.status_code == 400
    assert "only while their model is loaded" in unloaded.json()["error"]["message"]
    assert not kept(gateway)
