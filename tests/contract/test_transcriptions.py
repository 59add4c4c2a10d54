"""A real gateway on OpenAI's routes for audio files: the official client as the judge, what is
refused, and that no upload outlives its request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.harness.cases import events_of
from tests.harness.daemon import Daemon, daemon, registry, script, scripted
from tests.harness.forms import BOUNDARY, CONTENT_TYPE, Part, form, wav
from tests.harness.raw import connect

pytestmark = pytest.mark.anyio

MIB = 2**20
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
SOUND = wav(0.5)
SAID = "Good day, how are you?"

MODELS = [
    scripted("ears", kind="transcription", deltas=["Good day,", " how are", " you?"]),
    scripted("slow-ears", kind="transcription", deltas=1000, tokens_per_s=5, max_concurrency=4),
    scripted("late-ears", kind="transcription", load_s=2),
    scripted("words"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(*MODELS, server={"heartbeat_s": 0.2, "max_upload_mb": 4})
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running
        assert kept(running) == []


@pytest.fixture
async def client(gateway: Daemon) -> AsyncIterator[AsyncOpenAI]:
    url = f"{gateway.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def kept(gateway: Daemon) -> list[Path]:
    return list((gateway.folder / "state" / "run" / "media").iterdir())


async def post(gateway: Daemon, *parts: Part, path: str = TRANSCRIPTIONS) -> httpx.Response:
    async with gateway.client() as client:
        return await client.post(path, content=form(*parts), headers={"content-type": CONTENT_TYPE})


# --- the official client --------------------------------------------------------------------------

FILE = ("speech.wav", SOUND)


async def test_json(client: AsyncOpenAI) -> None:
    answer = await client.audio.transcriptions.create(
        model="ears", file=FILE, language="en", prompt="Names", temperature=0.2
    )
    assert answer.text == SAID
    assert answer.usage is not None
    assert answer.usage.model_dump() == {"seconds": 3.0, "type": "duration"}


async def test_verbose_json(client: AsyncOpenAI) -> None:
    answer = await client.audio.transcriptions.create(
        model="ears",
        file=FILE,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert (answer.language, answer.duration, answer.text) == ("english", 3.0, SAID)
    assert answer.segments is not None
    assert answer.words is not None
    assert [segment.text for segment in answer.segments] == ["Good day,", " how are", " you?"]
    assert [word.word for word in answer.words] == SAID.split()
    ends = [word.end for word in answer.words]
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("layout", "begins"),
    [("text", SAID), ("srt", "1\n00:00:00,000 --> "), ("vtt", "WEBVTT\n\n00:00:00.000 --> ")],
)
async def test_texts(client: AsyncOpenAI, layout: Any, begins: str) -> None:
    answer: Any = await client.audio.transcriptions.create(
        model="ears", file=FILE, response_format=layout
    )
    assert isinstance(answer, str)
    assert answer.startswith(begins)


async def test_a_stream(client: AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(model="ears", file=FILE, stream=True)
    events: list[Any] = [event async for event in stream]
    *deltas, done = events
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text == SAID


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # as OpenAI sees it
async def test_a_translation(client: AsyncOpenAI) -> None:
    plain = await client.audio.translations.create(model="ears", file=FILE)
    assert plain.text == SAID
    verbose: Any = await client.audio.translations.create(
        model="ears", file=FILE, response_format="verbose_json"
    )
    assert (verbose.language, verbose.task) == ("english", "translate")


# --- forms ----------------------------------------------------------------------------------------


async def test_fields_may_come_after_the_file(gateway: Daemon) -> None:
    answer = await post(
        gateway,
        ("unknown", "field"),
        ("file", SOUND, "misleading.txt"),
        ("response_format", "text"),
        ("model", "ears"),
        ("other", b"another file", "other.txt"),
    )
    assert (answer.status_code, answer.text) == (200, SAID + "\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


WAV: Part = ("file", SOUND, "a.wav")
EARS: Part = ("model", "ears")


@pytest.mark.parametrize(
    ("parts", "status", "param"),
    [
        ([WAV], 400, "model"),
        ([EARS], 400, "file"),
        ([EARS, ("file", b"", "a.wav")], 400, "file"),
        ([EARS, ("file", b"\0" * 100_000, "a.wav")], 400, "file"),
        ([EARS, ("file", b"just words", "a.mp3")], 400, "file"),
        ([EARS, WAV, WAV], 400, "file"),
        ([EARS, EARS, WAV], 400, "model"),
        ([("model", "nobody"), WAV], 404, "model"),
        ([("model", "words"), WAV], 400, "model"),
        ([EARS, WAV, ("temperature", "1.5")], 400, "temperature"),
        ([EARS, WAV, ("response_format", "xml")], 400, "response_format"),
        ([EARS, WAV, ("response_format", "diarized_json")], 400, "response_format"),
        ([EARS, WAV, ("timestamp_granularities[]", "word")], 400, "timestamp_granularities"),
        ([EARS, WAV, ("include[]", "logprobs")], 400, "include"),
        ([EARS, WAV, ("stream", "true"), ("response_format", "vtt")], 400, "stream"),
        ([EARS, WAV, ("prompt", "x" * 70_000)], 400, "prompt"),
        ([EARS, ("file", SOUND + b"\0" * 5 * MIB, "a.wav")], 413, "file"),
        ([EARS, WAV, ("prompt", script("a", {"raise": "file: it is damaged"}))], 500, None),
        ([EARS, WAV, ("prompt", script("a", {"exit": True}))], 503, None),
    ],
)
async def test_refusals(gateway: Daemon, parts: list[Part], status: int, param: str | None) -> None:
    answer = await post(gateway, *parts)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    await gateway.until(lambda _: not kept(gateway))


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
async def test_other_bodies(gateway: Daemon, path: str) -> None:
    async with gateway.client() as client:
        for body in ({"json": {"model": "ears"}}, {"data": {"model": "ears"}}):
            assert (await client.post(path, **body)).status_code == 415  # type: ignore[arg-type]
        untyped = await client.post(path, content=b"RIFF")
        assert untyped.status_code == 400
        assert "multipart/form-data" in untyped.json()["error"]["message"]
        cut = await client.post(
            path, content=form(EARS, WAV)[:-30], headers={"content-type": CONTENT_TYPE}
        )
        assert (cut.status_code, cut.json()["error"]["code"]) == (400, "invalid_request")
        elsewhere = await client.post(
            "/v1/chat/completions", content=form(EARS), headers={"content-type": CONTENT_TYPE}
        )
        assert elsewhere.status_code == 415
    assert kept(gateway) == []


async def test_a_body_without_a_length_is_counted_as_it_comes(gateway: Daemon) -> None:
    whole = form(EARS, ("file", SOUND + b"\0" * 6 * MIB, "a.wav"))

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(whole), 2**16):
            yield whole[begin : begin + 2**16]

    async with gateway.client() as client:
        answer = await client.post(
            TRANSCRIPTIONS, content=pieces(), headers={"content-type": CONTENT_TYPE}
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert kept(gateway) == []


# --- what becomes of the file ---------------------------------------------------------------------


async def test_a_client_that_leaves_in_the_middle_of_its_upload(gateway: Daemon) -> None:
    body = form(EARS, ("file", SOUND + b"\0" * 3 * MIB, "a.wav"))
    head = (
        f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    with connect(gateway.port) as connection:
        connection.sendall(head.encode() + body[: 2 * MIB])
        await gateway.until(lambda _: kept(gateway))
    await gateway.until(lambda _: not kept(gateway))
    status = await gateway.status()
    assert all(not model["running"] + model["waiting"] for model in status["models"])


async def test_a_file_is_there_until_its_client_leaves(gateway: Daemon) -> None:
    parts = form(("model", "slow-ears"), ("stream", "true"), WAV)
    async with (
        gateway.client() as client,
        client.stream(
            "POST", TRANSCRIPTIONS, content=parts, headers={"content-type": CONTENT_TYPE}
        ) as answer,
    ):
        assert answer.status_code == 200
        (file,) = kept(gateway)
        assert file.read_bytes() == SOUND
        assert file.stat().st_mode & 0o777 == 0o600
    await gateway.until(lambda _: not kept(gateway))
    await gateway.until_model("slow-ears", running=0)


async def test_a_cancel_by_id(gateway: Daemon) -> None:
    parts = form(("model", "slow-ears"), ("stream", "true"), WAV)
    headers = {"content-type": CONTENT_TYPE, "x-request-id": "to-be-cancelled"}
    async with (
        gateway.client() as client,
        client.stream("POST", TRANSCRIPTIONS, content=parts, headers=headers) as answer,
    ):
        cancelled = await client.post("/v1/requests/to-be-cancelled/cancel")
        assert cancelled.status_code == 200
        *_, (_, last) = events_of((await answer.aread()).decode())
    assert last["error"]["code"] == "cancelled"
    await gateway.until(lambda _: not kept(gateway))
    await gateway.until_model("slow-ears", running=0)


async def test_a_failure_in_a_stream_is_an_event(gateway: Daemon) -> None:
    told = script("Good ", {"sleep": 0.5}, {"raise": "the model has had enough"})
    answer = await post(gateway, EARS, WAV, ("stream", "true"), ("prompt", told))
    assert answer.status_code == 200
    (_, first), *_, (_, last) = events_of(answer.text)
    assert first == {"type": "transcript.text.delta", "delta": "Good "}
    assert last["error"]["code"] == "engine_error"


async def test_it_waits_for_its_model_with_heartbeats(gateway: Daemon) -> None:
    answer = await post(gateway, ("model", "late-ears"), WAV, ("stream", "true"))
    assert answer.status_code == 200
    assert ": waiting" in answer.text
    *_, (_, last) = events_of(answer.text)
    assert last["type"] == "transcript.text.done"


async def test_a_timeout_of_the_clients(gateway: Daemon) -> None:
    answer = await post(gateway, ("model", "slow-ears"), WAV, ("timeout", "0.5"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    await gateway.until(lambda _: not kept(gateway))


async def test_models_of_two_kinds_make_room_for_each_other(tmp_path: Path) -> None:
    models = (scripted("ears", kind="transcription"), scripted("words"))
    with daemon(registry(*models, budget_gb=1.5), tmp_path) as small:
        for _ in range(2):
            assert (await post(small, EARS, WAV)).status_code == 200
            await small.until_model("words", state="unloaded")
            assert (await small.chat("words")).status_code == 200
            await small.until_model("ears", state="unloaded")
        assert kept(small) == []
