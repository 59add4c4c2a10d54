"""What the demo asks of each kind of model, and what it makes of right and of wrong answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from demo import kinds, minilm
from demo.kinds import FIXTURES, MADE, SENTENCE, Part, parts
from demo.models import RECIPES
from demo.wheels import CACHE_VARIABLE
from tests.harness.forms import wav

Answers = Callable[[httpx.Request], httpx.Response]

REFERENCE = json.loads((FIXTURES / "vectors" / "bert-rerank" / "reference.json").read_text())


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    """The parts by kind, with an empty cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return {part.kind: part for part in parts()}


def ask(part: Part, answer: Answers) -> list[str]:
    """What is wrong, by the part, with these answers of a gateway."""
    # The official client's own type of clients comes from another package, and works alike.
    client: Any = httpx.Client(transport=httpx.MockTransport(answer))
    with OpenAI(base_url="http://gateway/v1", api_key="none", http_client=client) as openai:
        return part.tell(openai, part.served.name)


def body_of(request: httpx.Request) -> Any:
    return json.loads(request.content)


# --- answers --------------------------------------------------------------------------------------


def vectors(near: int) -> Answers:
    def answer(request: httpx.Request) -> httpx.Response:
        texts = body_of(request)["input"]
        near_ones = (minilm.QUESTION, minilm.ANSWERS[near])
        data = [
            {"object": "embedding", "index": i, "embedding": [1.0, 0] if t in near_ones else [0, 1]}
            for i, t in enumerate(texts)
        ]
        return httpx.Response(200, json={"object": "list", "model": "m", "data": data})

    return answer


def scores(offset: float, count: int | None = None) -> Answers:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/rerank"
        results = [
            {"index": index, "relevance_score": score + offset}
            for index, score in enumerate(REFERENCE["scores"])
        ]
        return httpx.Response(200, json={"results": results[:count]})

    return answer


def says(*texts: str) -> Answers:
    """One after the other."""
    left = list(texts)

    def answer(request: httpx.Request) -> httpx.Response:
        assert body_of(request)["messages"][0]["content"][0]["type"] == "image_url"
        message = {"role": "assistant", "content": left.pop(0)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        return httpx.Response(200, json={**whole, "choices": [choice]})

    return answer


def hears(text: str) -> Answers:
    return lambda request: httpx.Response(200, json={"text": text})


# --- tests ----------------------------------------------------------------------------------------

RIGHT: dict[str, Answers] = {
    "embedding": vectors(minilm.NEAREST),
    "rerank": scores(1e-6),
    "vision": says("It is red.", "It is green.", "It is blue."),
    "speech": lambda request: httpx.Response(200, content=wav()),
    "transcription": hears(SENTENCE),
}
WRONG: list[tuple[str, Answers, str]] = [
    ("embedding", vectors(0), "should have been"),
    ("rerank", scores(0.01), "in PyTorch"),
    ("rerank", scores(0, 2), "2 of 4 documents"),
    ("vision", says("It is red.", "It is red.", "It is blue."), "of a green square"),
    ("transcription", hears("The quick brown box jumps over the crazy dog."), "fox, lazy"),
]


def test_every_kind_has_a_right_answer(
    shown: dict[str, Part], capsys: pytest.CaptureFixture[str]
) -> None:
    """In order: what is spoken is what is listened to."""
    assert shown.keys() == RIGHT.keys()
    for kind, part in shown.items():
        assert ask(part, RIGHT[kind]) == []
        assert capsys.readouterr().out


@pytest.mark.parametrize(("kind", "answer", "says"), WRONG)
def test_a_wrong_answer_is_a_problem(
    shown: dict[str, Part], tmp_path: Path, kind: str, answer: Answers, says: str
) -> None:
    (tmp_path / kinds.SPOKEN).write_bytes(wav())
    assert says in ask(shown[kind], answer)[0]


def test_without_speech_there_is_nothing_to_listen_to(
    shown: dict[str, Part], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(shown["transcription"], hears("not asked")) == []
    assert "nothing was spoken" in capsys.readouterr().out


def test_formats_that_need_ffmpeg_are_told_where_it_is_missing(
    shown: dict[str, Part], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert ask(shown["speech"], RIGHT["speech"]) == []
    assert "ffmpeg is not installed" in capsys.readouterr().out


def test_an_earlier_run_s_speech_is_not_listened_to(shown: dict[str, Part], tmp_path: Path) -> None:
    file = tmp_path / kinds.SPOKEN
    file.write_bytes(wav())
    parts()
    assert not file.exists()


def test_models_are_made_or_at_hand(shown: dict[str, Part]) -> None:
    assert set(MADE) <= set(RECIPES)
    for part in shown.values():
        assert part.served.name in MADE or (part.served.folder / "config.json").is_file()
