"""What a real model has spoken, a real model hears, whatever file it comes in.

One window of Whisper takes several seconds of a CPU, so each request is made to show two things:
a kind of file, and a kind of answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from demo.models import Cache
from tests.harness.audio import RATE, converted, samples, seconds
from tests.harness.cases import events_of
from tests.harness.daemon import Daemon, daemon, registry
from tests.harness.forms import wav, wav_of
from tests.real.conftest import SENTENCE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

NAME = "whisper-base"
ANSWER_S = 240.0
TIME = r"\d\d:\d\d:\d\d"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    entry = {"name": NAME, "path": str(Cache().ensure([NAME])[NAME])}
    with daemon(registry(entry), tmp_path_factory.mktemp("hearing")) as running:
        yield running


async def hear(
    gateway: Daemon, audio: bytes, path: str = "transcriptions", **fields: Any
) -> httpx.Response:
    async with gateway.client() as client:
        answer = await client.post(
            f"/v1/audio/{path}",
            data={"model": NAME, **fields},
            files={"file": ("speech", audio)},
            timeout=ANSWER_S,
        )
    assert answer.status_code == 200, answer.text
    return answer


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def wrong_words(heard: str) -> int:
    """How many words have to be changed, added or left out to get from one to the other."""
    wanted, found = words(SENTENCE), words(heard)
    row = list(range(len(found) + 1))
    for i, word in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(found, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


async def test_wav_with_the_times_of_words(gateway: Daemon, spoken_wav: bytes) -> None:
    asked: dict[str, Any] = {
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    }
    heard = (await hear(gateway, spoken_wav, **asked)).json()
    assert wrong_words(heard["text"]) <= 1
    assert heard["language"] == "english"
    length = seconds(spoken_wav, "wav")
    assert heard["duration"] == pytest.approx(length, abs=0.05)
    (first, *_), (*_, last) = heard["words"], heard["words"]
    times = [time for word in heard["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert 0 <= first["start"] < 1
    assert length - 1.5 < last["end"] <= length
    assert words(" ".join(word["word"] for word in heard["words"])) == words(heard["text"])
    assert heard["segments"][0]["avg_logprob"] < 0


async def test_mp3_as_subrip(gateway: Daemon, spoken_wav: bytes) -> None:
    answer = await hear(gateway, converted(spoken_wav, "mp3"), response_format="srt", language="en")
    cues = answer.text.strip().split("\n\n")
    texts = []
    for number, cue in enumerate(cues, start=1):
        head, times, text = cue.split("\n")
        assert head == str(number)
        assert re.fullmatch(rf"{TIME},\d{{3}} --> {TIME},\d{{3}}", times)
        texts.append(text)
    assert wrong_words(" ".join(texts)) <= 1


async def test_m4a_as_webvtt(gateway: Daemon, spoken_wav: bytes) -> None:
    answer = await hear(gateway, converted(spoken_wav, "m4a"), response_format="vtt", language="en")
    head, *cues = answer.text.strip().split("\n\n")
    assert head == "WEBVTT"
    assert all(re.match(rf"{TIME}\.\d{{3}} --> {TIME}\.\d{{3}}\n", cue) for cue in cues)
    assert wrong_words(" ".join(cue.partition("\n")[2] for cue in cues)) <= 1


async def test_ogg_as_a_stream(gateway: Daemon, spoken_wav: bytes) -> None:
    answer = await hear(gateway, converted(spoken_wav, "ogg"), stream="true", language="english")
    *deltas, (_, done) = events_of(answer.text)
    assert done["type"] == "transcript.text.done"
    assert "".join(event["delta"] for _, event in deltas) == done["text"]
    assert wrong_words(done["text"]) <= 1


async def test_webm_translated_with_a_prompt(gateway: Daemon, spoken_wav: bytes) -> None:
    audio = converted(spoken_wav, "webm")
    answer = await hear(
        gateway, audio, "translations", response_format="text", prompt="A fox and a dog."
    )
    assert wrong_words(answer.text) <= 1


async def test_more_than_one_window_and_a_client_that_leaves(
    gateway: Daemon, spoken_wav: bytes
) -> None:
    """The sentence, a long silence, the sentence again; and nobody who waits for its end."""
    spoken = samples(spoken_wav, "wav")
    silence = np.zeros(33 * RATE - len(spoken), np.int16)
    audio = wav_of(np.concatenate([spoken, silence, spoken]), RATE)
    heard = (await hear(gateway, audio, response_format="verbose_json", language="en")).json()
    later = [segment for segment in heard["segments"] if segment["start"] > 25]
    assert wrong_words(" ".join(segment["text"] for segment in later)) <= 1
    assert all(29 < segment["start"] < segment["end"] <= 40 for segment in later)
    form = {"data": {"model": NAME, "stream": "true"}, "files": {"file": ("speech", audio)}}
    async with (
        gateway.client() as client,
        client.stream(
            "POST",
            "/v1/audio/transcriptions",
            timeout=ANSWER_S,
            **form,  # type: ignore[arg-type]  # of httpx's two
        ) as stream,
    ):
        assert stream.status_code == 200
    await gateway.until(lambda status: not status["models"][0]["running"], timeout_s=ANSWER_S)
    assert not list((gateway.folder / "state" / "run" / "media").iterdir())


NOISE = b"\x17\x2a" * 5000


@pytest.mark.parametrize(
    "audio",
    [
        b"RIFF\0\0\0\0WAVE" + NOISE,
        b"ID3\x03" + NOISE,
        b"OggS" + NOISE,
        b"\0\0\0\x20ftypM4A " + NOISE,
        wav(70, level=0),
    ],
    ids=["wav", "mp3", "ogg", "m4a", "silent"],
)
async def test_what_cannot_be_heard_is_refused(gateway: Daemon, audio: bytes) -> None:
    async with gateway.client() as client:
        answer = await client.post(
            "/v1/audio/transcriptions",
            data={"model": NAME},
            files={"file": ("speech", audio)},
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", "file")
    assert not list((gateway.folder / "state" / "run" / "media").iterdir())
