"""A real vision model through the whole gateway: every dialect, beside a text model in little room.

The official clients judge what the dialects say.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from PIL import Image

from tests.harness.daemon import CHAT, Daemon, daemon, registry
from tests.real.seeing import COLOURS, MODEL, NO_IMAGE, QUESTION, SIZES, named, two

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

TEXT_MODEL = MODEL.parent / "random-nano"
BUDGET_GB = 0.4
"""Room for either model alone: with its libraries each takes more than half of it."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    models: list[dict[str, Any]] = [
        {"name": "eyes", "path": str(MODEL), "temperature": 0, "max_tokens": 24},
        {"name": "words", "path": str(TEXT_MODEL), "kv_memory_gb": 0.1},
        {"name": "eyes-wild", "of": "eyes", "temperature": 2},
    ]
    document = registry(*models, budget_gb=BUDGET_GB)
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def openai(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    url = f"{gateway.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
async def anthropic(gateway: Daemon) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


def shown(colour: str, size: tuple[int, int] = (320, 200)) -> str:
    """The base64 of a picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, COLOURS[colour]).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def url(data: str) -> str:
    return f"data:image/png;base64,{data}"


def kept(gateway: Daemon) -> list[Path]:
    return list((gateway.folder / "state" / "run" / "media").iterdir())


# --- every dialect --------------------------------------------------------------------------------


async def chat(openai: AsyncOpenAI, _: Any, pictures: list[str]) -> str:
    answer = await openai.chat.completions.create(model="eyes", messages=_chat(pictures))
    return answer.choices[0].message.content or ""


async def chat_streamed(openai: AsyncOpenAI, _: Any, pictures: list[str]) -> str:
    stream = await openai.chat.completions.create(
        model="eyes", messages=_chat(pictures), stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def _chat(pictures: list[str]) -> Any:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url(data)}} for data in pictures
    ]
    parts.append({"type": "text", "text": QUESTION})
    return [{"role": "user", "content": parts}]


async def response(openai: AsyncOpenAI, _: Any, pictures: list[str]) -> str:
    answer = await openai.responses.create(model="eyes", input=_input(pictures), temperature=0)
    return answer.output_text


async def response_streamed(openai: AsyncOpenAI, _: Any, pictures: list[str]) -> str:
    async with openai.responses.stream(
        model="eyes", input=_input(pictures), temperature=0
    ) as stream:
        return (await stream.get_final_response()).output_text


def _input(pictures: list[str]) -> Any:
    parts = [{"type": "input_image", "image_url": url(data)} for data in pictures]
    return [{"role": "user", "content": [*parts, {"type": "input_text", "text": QUESTION}]}]


async def message(_: Any, anthropic: AsyncAnthropic, pictures: list[str]) -> str:
    answer = await anthropic.messages.create(model="eyes", max_tokens=24, messages=_turns(pictures))
    return "".join(block.text for block in answer.content if block.type == "text")


async def message_streamed(_: Any, anthropic: AsyncAnthropic, pictures: list[str]) -> str:
    async with anthropic.messages.stream(
        model="eyes", max_tokens=24, messages=_turns(pictures)
    ) as stream:
        return "".join([text async for text in stream.text_stream])


def _turns(pictures: list[str]) -> Any:
    blocks: list[dict[str, Any]] = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        for data in pictures
    ]
    return [{"role": "user", "content": [*blocks, {"type": "text", "text": QUESTION}]}]


Ask = Callable[[AsyncOpenAI, AsyncAnthropic, list[str]], Awaitable[str]]
DIALECTS: list[Ask] = [
    *(chat, chat_streamed, response, response_streamed),
    *(message, message_streamed),
]


@pytest.mark.parametrize("ask", DIALECTS)
async def test_it_sees_in_every_dialect(
    gateway: Daemon, openai: AsyncOpenAI, anthropic: AsyncAnthropic, ask: Ask
) -> None:
    sized = list(zip(COLOURS, SIZES, strict=True))
    answers = await asyncio.gather(
        *(ask(openai, anthropic, [shown(colour, size)]) for colour, size in sized),
        ask(openai, anthropic, [shown("red"), shown("blue")]),
        ask(openai, anthropic, []),
    )
    assert answers == [*map(named, COLOURS), two("red", "blue"), NO_IMAGE]
    await gateway.until(lambda _: not kept(gateway))


async def test_a_conversation_goes_on_about_its_image(openai: AsyncOpenAI) -> None:
    first = await openai.responses.create(model="eyes", input=_input([shown("red")]), temperature=0)
    again = await openai.responses.create(
        model="eyes",
        input=_input([shown("blue")]),
        previous_response_id=first.id,
        temperature=0,
    )
    assert first.usage is not None
    assert again.usage is not None
    assert again.usage.input_tokens > 2 * first.usage.input_tokens


async def test_a_video_is_looked_at(gateway: Daemon, tmp_path: Path) -> None:
    body = {
        "model": "eyes",
        "video_max_frames": 4,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "video_url", "video_url": {"url": _video(tmp_path, "blue")}},
                    {"type": "text", "text": QUESTION},
                ],
            }
        ],
    }
    assert await _said(gateway, body) == "The video is blue."


def _video(folder: Path, colour: str) -> str:
    path = folder / "a.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (56, 56))
    for _ in range(20):
        writer.write(np.full((56, 56, 3), COLOURS[colour][::-1], np.uint8))
    writer.release()
    return f"data:video/x-msvideo;base64,{base64.b64encode(path.read_bytes()).decode()}"


async def _said(gateway: Daemon, body: dict[str, Any]) -> str:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


# --- what it costs, and what it leaves ------------------------------------------------------------


async def test_the_same_image_is_looked_at_once(gateway: Daemon) -> None:
    async def features() -> dict[str, int]:
        stats = (await gateway.get("/v1/cache/stats")).json()
        found: dict[str, int] = next(m for m in stats["models"] if m["name"] == "eyes")["features"]
        return found

    async def seen(hits: int) -> dict[str, int]:
        """The counters, once they have come to so many hits; the engine tells them every second."""
        async with asyncio.timeout(30):
            while (found := await features())["hits"] != hits:
                await gateway.status()
        return found

    async with gateway.client() as client:
        assert (await client.post("/v1/models/eyes/unload")).is_success
    await gateway.until_model("eyes", state="unloaded")
    body = {"model": "eyes", "messages": _chat([shown("green")])}
    for _ in range(3):
        assert await _said(gateway, body) == named("green")
    found = await seen(2)
    assert (found["entries"], found["misses"]) == (1, 1)
    assert found["bytes"] > 0
    async with gateway.client() as client:
        assert (await client.delete("/v1/cache?model=eyes")).status_code == 200
    assert await _said(gateway, body) == named("green")
    async with asyncio.timeout(30):
        while (await features())["misses"] != 2:
            await gateway.status()


async def test_prompts_with_images_are_counted_as_they_are_used(
    gateway: Daemon, anthropic: AsyncAnthropic
) -> None:
    turns = _turns([shown("red"), shown("blue", (64, 64))])
    answer = await anthropic.messages.create(model="eyes", max_tokens=4, messages=turns)
    counted = await anthropic.messages.count_tokens(model="eyes", messages=turns)
    assert counted.input_tokens == answer.usage.input_tokens
    await gateway.until(lambda _: not kept(gateway))


BROKEN = {
    "cut": base64.b64encode(base64.b64decode(shown("red"))[:90]).decode(),
    "empty": "",
    "text": base64.b64encode(b"hello").decode(),
    "huge": base64.b64encode(
        base64.b64decode(shown("red"))[:16]
        + (60_000).to_bytes(4, "big") * 2
        + base64.b64decode(shown("red"))[24:]
    ).decode(),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_image_is_a_400_and_gone(gateway: Daemon, name: str) -> None:
    body = {"model": "eyes", "messages": _chat([shown("red"), BROKEN[name]])}
    async with gateway.client() as client:
        refused, good = await asyncio.gather(
            client.post(CHAT, json=body, timeout=120),
            client.post(CHAT, json={"model": "eyes", "messages": _chat([shown("red")])}),
        )
    assert refused.status_code == 400, refused.text
    assert "image cannot be used" in refused.json()["error"]["message"]
    assert good.json()["choices"][0]["message"]["content"] == named("red")
    await gateway.until(lambda _: not kept(gateway))


async def test_one_is_cancelled_and_the_others_go_on(gateway: Daemon) -> None:
    body = {"model": "eyes-wild", "messages": _chat([shown("red")]), "max_tokens": 4000}
    long = {**body, "stream": True, "logit_bias": await _never_ending(gateway)}
    async with gateway.client() as client:
        headers = {"x-request-id": "req_long"}
        async with client.stream("POST", CHAT, json=long, headers=headers) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            async for line in lines:
                if "content" in line:
                    break
            short = await _said(gateway, {"model": "eyes", "messages": _chat([shown("blue")])})
            assert short == named("blue")
            ended = await client.delete("/v1/requests/req_long")
            assert ended.status_code == 200, ended.text
            rest = "\n".join([line async for line in lines])
    assert '"cancelled"' in rest
    await gateway.until_model("eyes", leases=0, running=0)
    await gateway.until(lambda _: not kept(gateway))


async def _never_ending(gateway: Daemon) -> dict[str, int]:
    body = {"model": "eyes", "prompt": "<|im_end|>", "add_special_tokens": False}
    async with gateway.client() as client:
        tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
    return {str(token): -100 for token in tokens}


async def test_it_makes_room_for_a_text_model_and_comes_back(gateway: Daemon) -> None:
    body = {"model": "eyes", "messages": _chat([shown("white")])}
    assert await _said(gateway, body) == named("white")
    before = await gateway.model("eyes")
    text: httpx.Response = await gateway.chat("words", max_tokens=4)
    assert text.status_code == 200, text.text
    gone = await gateway.until_model("eyes", state="unloaded")
    assert gone["evictions"] == before["evictions"] + 1
    seen, read = await asyncio.gather(
        asyncio.gather(*(_said(gateway, body) for _ in range(3))),
        asyncio.gather(*(gateway.chat("words", max_tokens=4) for _ in range(2))),
    )
    assert seen == [named("white")] * 3
    assert [answer.status_code for answer in read] == [200, 200]
    status = await gateway.status()
    assert status["memory"]["committed_bytes"] <= status["memory"]["budget_bytes"]


async def test_a_text_model_gets_no_image(gateway: Daemon) -> None:
    async with gateway.client() as client:
        body = {"model": "words", "messages": _chat([shown("red")])}
        answer = await client.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0]"
    assert not kept(gateway)
