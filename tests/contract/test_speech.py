"""A real gateway that speaks: cases as data, the official client, and listeners of every kind."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import AsyncOpenAI

from engines import wire
from tests.harness import audio, raw
from tests.harness.cases import Case, load, run
from tests.harness.daemon import Daemon, daemon, registry, script, scripted

pytestmark = pytest.mark.anyio

SPEECH = "/v1/audio/speech"
WORD_S = 0.25
WORD_BYTES = 12_000
"""What one word of a scripted voice takes, at 24 kHz and 16 bits."""

MODELS = [
    scripted("speaker", kind="speech", aliases=["tts-1"], max_concurrency=16),
    scripted("slow", kind="speech", tokens_per_s=20, max_concurrency=16),
    scripted("plain", kind="speech", env={"PATH": "/nonexistent"}),
    scripted("fragile", kind="speech"),
    scripted("never-loaded", kind="speech"),
    scripted("writer"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(*MODELS, server={"heartbeat_s": 0.2})
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def said(text: str, model: str = "speaker", format: str = "pcm", **more: Any) -> dict[str, Any]:
    return {"model": model, "input": text, "response_format": format, **more}


def many(words: int) -> str:
    return "word " * words


# --- cases and the official client ----------------------------------------------------------------


async def test_cases(gateway: Daemon) -> None:
    """In order: later ones ask about a model that earlier ones have loaded."""
    async with gateway.client() as client:
        for case in load("speech.yaml"):
            await _run(case, client)


async def _run(case: Case, client: httpx.AsyncClient) -> None:
    try:
        await run(case, client)
    except AssertionError as error:
        raise AssertionError(f"case {case.name!r}: {error}") from error


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3", "flac", "opus", "aac"])
async def test_every_format_is_a_file_of_the_right_length(client: AsyncOpenAI, format: Any) -> None:
    async with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alto", input=many(8), response_format=format
    ) as response:
        data = await response.read()
    assert audio.seconds(data, format) == pytest.approx(8 * WORD_S, abs=0.15)
    assert audio.loudness(data, format) == pytest.approx(8000 / 32768 / 2**0.5, rel=0.1)


async def test_speed_is_heard(client: AsyncOpenAI) -> None:
    answer = await client.audio.speech.create(
        model="speaker", voice="bass", input=many(8), response_format="wav", speed=2
    )
    assert answer.content[:4] == b"RIFF"
    assert audio.seconds(answer.content, "wav") == pytest.approx(8 * WORD_S / 2, abs=0.01)


async def test_the_official_client_hears_why_not(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="alto, bass"):
        await client.audio.speech.create(model="speaker", voice="nova", input="one")


async def test_events_hold_the_same_bytes_and_end_with_usage(gateway: Daemon) -> None:
    async with gateway.client() as client:
        whole = await client.post(SPEECH, json=said(many(5)))
        events = await client.post(SPEECH, json=said(many(5), stream_format="sse"))
    found = [
        json.loads(line.removeprefix("data: "))
        for line in events.text.splitlines()
        if line.startswith("data: ")
    ]
    *deltas, done = found
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == whole.content
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 5, "output_tokens": 0, "total_tokens": 5},
    }


async def test_the_first_bytes_come_before_the_last_word_is_spoken(gateway: Daemon) -> None:
    body = said(script("one ", {"sleep": 3600}), "slow")
    async with gateway.client() as client, client.stream("POST", SPEECH, json=body) as answer:
        received = 0
        async for piece in answer.aiter_bytes():
            received += len(piece)
            if received == WORD_BYTES:
                break
    await gateway.until_model("slow", leases=0)


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "step", "more"),
    [
        ("speaker", {"raise": "no breath"}, {}),
        ("fragile", {"exit": True}, {}),
        ("speaker", {"sleep": 3600}, {"timeout": 1}),
    ],
)
async def test_a_file_that_fails_is_never_taken_for_a_whole_one(
    gateway: Daemon, model: str, step: dict[str, Any], more: dict[str, Any]
) -> None:
    body = said(script("one ", "two ", {"sleep": 0.2}, step), model, **more)
    received = bytearray()

    async def listen() -> None:
        async with gateway.client() as client, client.stream("POST", SPEECH, json=body) as answer:
            assert answer.status_code == 200
            async for piece in answer.aiter_bytes():
                received.extend(piece)

    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await listen()
    assert 0 < len(received) <= 2 * WORD_BYTES


async def test_who_leaves_frees_the_engine_and_its_encoder(gateway: Daemon) -> None:
    body = said(many(100_000)[:16_000], "slow", "mp3")
    async with gateway.client() as client, client.stream("POST", SPEECH, json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
        encoders = [process for process in gateway.engines() if process.name() == "ffmpeg"]
        assert len(encoders) == 1
        inherited = {file.path for file in encoders[0].open_files()}
        assert not inherited
        assert not [fd for fd in _sockets(encoders[0])], "it holds the engine's socket open"
        assert "LD_PRELOAD" not in encoders[0].environ()
    await gateway.until_model("slow", leases=0)
    psutil.wait_procs(encoders, timeout=audio.TIMEOUT_S)
    assert not encoders[0].is_running()


def _sockets(process: psutil.Process) -> list[Any]:
    return list(process.net_connections(kind="all"))


async def test_a_slow_listener_pauses_its_own_call_alone_and_gets_everything(
    gateway: Daemon,
) -> None:
    words = 1200
    assert words * WORD_BYTES > 8 * wire.SPEECH_CREDIT_BYTES
    request = raw.request_bytes(SPEECH, json.dumps(said(many(words))).encode())
    with raw.stalled(gateway.port, request) as listener:
        async with gateway.client() as client:
            other = await client.post(SPEECH, json=said(many(400)))
        assert len(other.content) == 400 * WORD_BYTES
        assert (await gateway.model("speaker"))["leases"] == 1
        received = raw.read_chunks(listener)
    assert len(received) == words * WORD_BYTES
    await gateway.until_model("speaker", leases=0)


async def test_voices_load_nothing(gateway: Daemon) -> None:
    assert (await gateway.get("/v1/audio/voices?model=never-loaded")).status_code == 200
    assert (await gateway.model("never-loaded"))["state"] == "unloaded"
