"""Kokoro speaks: through the gateway, in every format, in other languages, at other speeds."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest

from tests.harness import audio
from tests.harness.daemon import Daemon
from tests.real.conftest import SENTENCE, SPEAK_TIMEOUT_S

pytestmark = pytest.mark.anyio

WORD = "Hello."
VOICES = ["jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo"]


async def speak(gateway: Daemon, text: str, format: str = "pcm", **more: Any) -> bytes:
    body = {"model": "kokoro", "input": text, "response_format": format, **more}
    async with gateway.client() as client:
        answer = await client.post("/v1/audio/speech", json=body, timeout=SPEAK_TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_voices_are_known_before_the_model_is_loaded(speaker: Daemon) -> None:
    answer = await speaker.get("/v1/audio/voices")
    assert answer.json()["voices"] == VOICES


async def test_a_sentence_is_a_sound_of_plausible_length(
    speaker: Daemon, spoken_wav: bytes
) -> None:
    assert spoken_wav[:4] + spoken_wav[8:16] == b"RIFFWAVEfmt "
    assert struct.unpack_from("<HHI", spoken_wav, 20) == (1, 1, 24_000)
    assert len(SENTENCE) / 25 < audio.seconds(spoken_wav, "wav") < len(SENTENCE) / 8
    sound = audio.samples(spoken_wav, "wav").astype(np.float64) / 32768
    assert 0.1 < np.abs(sound).max() < 1.0
    assert 0.01 < audio.loudness(spoken_wav, "wav") < 0.3
    assert (await speaker.model("kokoro"))["state"] == "ready"
    assert (await speaker.get("/v1/audio/voices?model=kokoro")).json()["voices"] == VOICES


async def test_every_format_has_the_same_length(speaker: Daemon) -> None:
    """A short word, because each is made anew and a CPU is slow at it."""
    plain = audio.seconds(await speak(speaker, WORD), "pcm")
    assert 0.3 < plain < 2.0
    for format in ("mp3", "flac", "opus", "aac"):
        data = await speak(speaker, WORD, format)
        assert audio.seconds(data, format) == pytest.approx(plain, abs=0.15), format
        assert audio.loudness(data, format) > 0.01, format


async def test_speed_voice_and_language_change_the_sound(speaker: Daemon) -> None:
    plain = await speak(speaker, WORD, voice="jf_alpha", language="en")
    fast = await speak(speaker, WORD, speed=2.0)
    other = await speak(speaker, WORD, voice="jm_kumo")
    french = await speak(speaker, WORD, language="fr")
    assert 0.35 < len(fast) / len(plain) < 0.8
    assert len({len(plain), len(other), len(french)}) > 1
    assert all(audio.loudness(data, "pcm") > 0.01 for data in (fast, other, french))


REFUSED = [
    ({"voice": "af_heart"}, "jf_alpha"),
    ({"language": "tlh"}, "en, en-gb"),
    ({"instructions": "Whisper."}, "instructions"),
    ({"input": "おはよう"}, r"misaki\[ja\]"),
    ({"input": "*"}, "nothing in it to speak"),
]


@pytest.mark.parametrize(("fields", "says"), REFUSED)
async def test_what_it_cannot_do_is_refused_by_name(
    speaker: Daemon, fields: dict[str, Any], says: str
) -> None:
    body = {"model": "kokoro", "input": "one", "response_format": "wav", **fields}
    async with speaker.client() as client:
        answer = await client.post("/v1/audio/speech", json=body, timeout=SPEAK_TIMEOUT_S)
    assert answer.status_code == 400, answer.text
    assert re.search(says, answer.json()["error"]["message"])
