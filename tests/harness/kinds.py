"""One question for each kind of model, in the shape of its route; and a scripted model of each.

A question's judge asserts that the whole answer is there and right.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from PIL import Image

from tests.harness.daemon import CHAT, reply, scripted
from tests.harness.forms import wav
from tests.harness.mixed import Judge, Question, read_frames

TOLERANCE = 1e-4
"""How near vectors and scores have to come to those of the reference."""

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TRANSCRIPTIONS, SPEECH = "/v1/audio/transcriptions", "/v1/audio/speech"


# --- questions ------------------------------------------------------------------------------------


def chat(model: str, wanted: str, content: Any, *, stream: bool, **fields: Any) -> Question:
    """`content` as a user's message has it; the answer is `wanted`, word for word."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": stream}

    def judge_stream(answer: bytes) -> None:
        read_frames(answer).assert_complete(wanted)

    def judge_whole(answer: bytes) -> None:
        (choice,) = json.loads(answer)["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (wanted, "stop")

    return Question(CHAT, {"json": body | fields}, judge_stream if stream else judge_whole)


def embed(model: str, texts: Sequence[str], wanted: Sequence[Sequence[float]] | int) -> Question:
    """One vector for each text: these, or of length 1 and with so many values."""

    def judge(answer: bytes) -> None:
        vectors = [item["embedding"] for item in json.loads(answer)["data"]]
        assert len(vectors) == len(texts)
        if isinstance(wanted, int):
            assert [len(vector) for vector in vectors] == [wanted] * len(texts)
            assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1] * len(texts))
        else:
            for vector, expected in zip(vectors, wanted, strict=True):
                assert vector == pytest.approx(expected, abs=TOLERANCE)

    return Question(EMBEDDINGS, {"json": {"model": model, "input": list(texts)}}, judge)


def rerank(model: str, query: str, documents: Sequence[str], scores: Sequence[float]) -> Question:
    """`scores` are those of the documents, in their order."""
    body = {"model": model, "query": query, "documents": list(documents)}

    def judge(answer: bytes) -> None:
        results = json.loads(answer)["results"]
        found = [result["relevance_score"] for result in results]
        assert found == sorted(found, reverse=True)
        by_index = [s for _, s in sorted((r["index"], r["relevance_score"]) for r in results)]
        assert by_index == pytest.approx(list(scores), abs=TOLERANCE)

    return Question(RERANK, {"json": body}, judge)


def transcribe(model: str, audio: bytes, judge_text: Any, *, stream: bool = False) -> Question:
    """An upload; `judge_text` gets what was heard."""

    def judge(answer: bytes) -> None:
        if stream:
            frames = read_frames(answer).frames
            assert frames[-1]["type"] == "transcript.text.done"
            assert "".join(frame["delta"] for frame in frames[:-1]) == frames[-1]["text"]
            judge_text(frames[-1]["text"])
        else:
            judge_text(json.loads(answer)["text"])

    form: dict[str, Any] = {
        "data": {"model": model, "language": "en", **({"stream": "true"} if stream else {})},
        "files": {"file": ("speech.wav", audio)},
    }
    return Question(TRANSCRIPTIONS, form, judge)


def speak(model: str, text: str, judge: Judge, **fields: Any) -> Question:
    """A file, sent as it is made."""
    body = {"model": model, "input": text, "response_format": "pcm", **fields}
    return Question(SPEECH, {"json": body}, judge, bare=True)


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> dict[str, Any]:
    """A part of a message: an image of one colour, in it."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def sound(audio: bytes) -> dict[str, Any]:
    """A part of a message: something to listen to, in it."""
    data = base64.b64encode(audio).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


# --- a scripted model of each kind ----------------------------------------------------------------

SIZE_GB = 4
WORDS = 40
SPOKEN_WORDS = 120
SPOKEN_WORD_BYTES = 12_000
DIMENSIONS = 8
HEARD = "Good day, how are you?"

_PACED: dict[str, Any] = {"tokens_per_s": 40, "load_s": 0.1, "max_concurrency": 8}

SCRIPTED: Mapping[str, dict[str, Any]] = {
    "text": scripted("writer", SIZE_GB, deltas=WORDS, audio_transcriber="ears", **_PACED),
    "vision": scripted("eyes", SIZE_GB, kind="vision", deltas=WORDS, **_PACED),
    "embedding": scripted("vectors", SIZE_GB, kind="embedding", vector_dim=DIMENSIONS),
    "rerank": scripted("ranker", SIZE_GB, kind="rerank"),
    "transcription": scripted(
        "ears", SIZE_GB, kind="transcription", deltas=["Good day,", " how are", " you?"], **_PACED
    ),
    "speech": scripted("voice", SIZE_GB, kind="speech", max_concurrency=8, load_s=0.1),
}
"""An entry for each kind; none of them fits beside two others in a budget of nine."""

BUDGET_GB = 9


def scripted_questions() -> dict[str, Question]:
    """One for each kind, and audio in a chat, which a model hears under a lease of its own."""

    def is_heard(text: str) -> None:
        assert text == HEARD

    def is_spoken(audio: bytes) -> None:
        assert len(audio) == SPOKEN_WORDS * SPOKEN_WORD_BYTES

    said = reply(WORDS)
    text = {"type": "text", "text": "What is that?"}
    return {
        "text": chat("writer", said, "hello", stream=True),
        "vision": chat("eyes", said, [picture((220, 30, 30)), text], stream=False),
        "audio in chat": chat("writer", said, [sound(wav(0.5)), text], stream=True),
        "embedding": embed("vectors", ["one", "two words", "and three more"], DIMENSIONS),
        "rerank": rerank("ranker", "red fish", ["a bird", "a red bird", "red fish"], [0, 0.5, 1]),
        "transcription": transcribe("ears", wav(2.0), is_heard),
        "transcription, streamed": transcribe("ears", wav(2.0), is_heard, stream=True),
        "speech": speak("voice", "word " * SPOKEN_WORDS, is_spoken),
    }
