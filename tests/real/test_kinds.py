"""A mixed load over real models of every kind, with room for two of them at a time.

Four are tiny fixtures; what speaks is Kokoro, and what listens to it is Whisper.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.models import Cache
from tests.harness.daemon import Daemon, daemon, registry
from tests.harness.kinds import SPEECH, chat, embed, picture, rerank, speak, transcribe
from tests.harness.mixed import Clients, Question, Report, emptied, plan
from tests.harness.observe import GIB
from tests.real.conftest import SENTENCE, SPEAK_TIMEOUT_S
from tests.real.seeing import COLOURS, QUESTION, named

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS, VECTORS = FIXTURES / "models", FIXTURES / "vectors"

SEED = 0
VISITS = 12
PER_S = 1.0
BOUND_S = 300.0
BUDGET_GB = 1.2
RATE = 24_000
SAMPLE_BYTES = 2
COMPILED = "mlx"
"""Where MLX keeps the kernels that it has compiled for this processor."""


def entries() -> list[dict[str, Any]]:
    made = Cache().ensure(["kokoro-82m", "whisper-base"])
    steady = {"temperature": 0, "max_tokens": 24, "kv_memory_gb": 0.1}
    return [
        {"name": "writer", "path": str(MODELS / "scripted-hermes"), **steady},
        {"name": "eyes", "path": str(MODELS / "tiny-qwen2-vl"), **steady},
        {"name": "vectors", "path": str(VECTORS / "bert-embedding")},
        {"name": "ranker", "path": str(VECTORS / "bert-rerank")},
        {"name": "voice", "path": str(made["kokoro-82m"])},
        {"name": "ears", "path": str(made["whisper-base"])},
    ]


def questions(spoken: bytes) -> dict[str, Question]:
    """What each model is asked; `spoken` is `SENTENCE` as a WAV file."""
    greeting, answer = next(iter(_reference(MODELS / "scripted-hermes", "scripts.json").items()))
    texts = _reference(VECTORS / "bert-embedding")
    pairs = _reference(VECTORS / "bert-rerank")
    colour = "blue"
    parts = [picture(COLOURS[colour], (320, 200)), {"type": "text", "text": QUESTION}]

    def is_the_sentence(text: str) -> None:
        missing = set(_words(SENTENCE)) - set(_words(text))
        assert len(missing) <= 1, text

    def is_as_long(audio: bytes) -> None:
        length = (len(spoken) - 44) / SAMPLE_BYTES / RATE
        assert len(audio) / SAMPLE_BYTES / RATE == pytest.approx(length, abs=0.5)

    return {
        "text": chat("writer", answer.removesuffix("<|im_end|>"), greeting, stream=True),
        "vision": chat("eyes", named(colour), parts, stream=False),
        "embedding": embed("vectors", texts["texts"], texts["vectors"]["mean"]),
        "rerank": rerank(
            "ranker",
            pairs["pairs"][0][0],
            [document for _, document in pairs["pairs"]],
            pairs["scores"],
        ),
        "transcription": transcribe("ears", spoken, is_the_sentence),
        "speech": speak("voice", SENTENCE, is_as_long),
    }


def _reference(folder: Path, file: str = "reference.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / file).read_text(encoding="utf-8"))
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


async def say(gateway: Daemon) -> bytes:
    """`SENTENCE` as a WAV file."""
    body = {"model": "voice", "input": SENTENCE, "response_format": "wav"}
    async with gateway.client() as client:
        answer: httpx.Response = await client.post(SPEECH, json=body, timeout=SPEAK_TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.content


async def withstand(folder: Path, seed: int, count: int, per_s: float) -> Report:
    """So many visits to a gateway of its own; fails unless all of them went as they should."""
    scratch = folder / "scratch"
    scratch.mkdir()
    policy = {"strategy": "wait_then_fail", "wait_timeout_s": BOUND_S}
    document = registry(*entries(), budget_gb=BUDGET_GB, max_engines=2, contention_policy=policy)
    with daemon(document, folder / "gateway", {"TMPDIR": str(scratch)}) as gateway:
        asked = questions(await say(gateway))
        visits = plan(seed, list(asked), count, per_s)
        report = await Clients(gateway, asked, BOUND_S).play(visits)
        await emptied(gateway)
        assert report.faults == [], report
        assert report.peak_bytes <= BUDGET_GB * GIB
        assert {path.name for path in scratch.iterdir()} <= {COMPILED}
        assert "Traceback" not in gateway.log, gateway.log[-5000:]
    readers = [visit.asks for visit in visits if visit.manner in ("reads", "dawdles")]
    assert set(readers) == set(asked), "the plan leaves out a kind: take another seed"
    assert report.tally["complete"] >= len(readers), report
    assert report.swaps >= len(asked) - 2, report
    return report


async def test_a_mixed_load_runs_clean(tmp_path: Path) -> None:
    print(f"\n{await withstand(tmp_path, SEED, VISITS, PER_S)}")  # noqa: T201
