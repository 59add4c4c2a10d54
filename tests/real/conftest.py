"""What several tests of real models share, made once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from demo.models import Cache
from tests.harness.daemon import Daemon, daemon, registry

SENTENCE = "The quick brown fox jumps over the lazy dog."
SPEAK_TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A gateway with one model, Kokoro, under the name `kokoro`."""
    name = "kokoro-82m"
    entry = {"name": "kokoro", "path": str(Cache().ensure([name])[name])}
    with daemon(registry(entry), tmp_path_factory.mktemp("speaker")) as running:
        yield running


@pytest.fixture(scope="session")
def spoken_wav(speaker: Daemon) -> bytes:
    """`SENTENCE` as a WAV file; `tests.harness.audio.converted` makes other kinds of it."""
    answer = httpx.post(
        f"{speaker.url}/v1/audio/speech",
        json={"model": "kokoro", "input": SENTENCE, "response_format": "wav"},
        timeout=SPEAK_TIMEOUT_S,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    return answer.content
