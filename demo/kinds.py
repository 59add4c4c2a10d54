"""The kinds of models beside those that chat: each is asked one thing whose answer can be checked.

A `Part` prints what it does and returns what is wrong. All of them talk to the daemon through the
official OpenAI client. What is spoken is kept as a file, and is what the next part listens to.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from demo import kokoro, minilm, whisper
from demo.choice import Choice
from demo.wheels import cache_dir

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
SPOKEN = "demo-speech.wav"
SENTENCE = "The quick brown fox jumps over the lazy dog."
MOST_WRONG_WORDS = 1
SPEECH_PACKAGES = ("espeakng_loader", "misaki", "phonemizer")
TOLERANCE = 1e-4
COLOURS = {"red": (220, 30, 30), "green": (30, 180, 40), "blue": (30, 50, 220)}

Tell = Callable[[OpenAI, str], list[str]]
"""Asks the model of this name, prints what came of it, and returns what is wrong with that."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of model. It is not shown where one of the Python `packages` is missing."""

    kind: str
    does: str
    served: Choice
    tell: Tell
    packages: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        return [name for name in self.packages if importlib.util.find_spec(name) is None]


MADE = (minilm.RECIPE.name, kokoro.RECIPE.name, whisper.RECIPE.name)
"""Models of `demo.models` that the parts ask for; the others are kept among the fixtures."""


def parts() -> tuple[Part, ...]:
    """In the order in which they are shown; the last one listens to what the one before says."""
    cache = cache_dir()
    spoken = cache / SPOKEN
    spoken.unlink(missing_ok=True)

    def served(recipe: str) -> Choice:
        return Choice(recipe, cache / recipe)

    return (
        Part("embedding", "which of three texts is nearest?", served(MADE[0]), _embed),
        Part(
            "rerank",
            "scores as PyTorch gives them (its weights were drawn: the order means nothing)",
            Choice("tiny-bert-rerank", FIXTURES / "vectors" / "bert-rerank"),
            _rerank,
        ),
        Part(
            "vision",
            "what colour is a square?",
            Choice("tiny-qwen2-vl", FIXTURES / "models" / "tiny-qwen2-vl"),
            _see,
        ),
        Part(
            "speech",
            f"says {SENTENCE!r}",
            served(MADE[1]),
            lambda client, model: _speak(client, model, spoken),
            SPEECH_PACKAGES,
        ),
        Part(
            "transcription",
            "what was said?",
            served(MADE[2]),
            lambda client, model: _hear(client, model, spoken),
        ),
    )


# --- what each does -------------------------------------------------------------------------------


def _embed(client: OpenAI, model: str) -> list[str]:
    def embed(texts: Sequence[str]) -> list[list[float]]:
        answer = client.embeddings.create(model=model, input=list(texts))
        return [item.embedding for item in answer.data]

    return minilm.tell(embed)


def _rerank(client: OpenAI, model: str) -> list[str]:
    file = FIXTURES / "vectors" / "bert-rerank" / "reference.json"
    reference: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    documents = [document for _, document in reference["pairs"]]
    body = {"model": model, "query": reference["pairs"][0][0], "documents": documents}
    answer: Any = client.post("/rerank", cast_to=object, body=body)
    problems = []
    for result in answer["results"]:
        score, index = result["relevance_score"], result["index"]
        print(f"  {score:.4f}  {documents[index]}")
        if abs(score - reference["scores"][index]) > TOLERANCE:
            problems.append(f"{documents[index]!r} has {reference['scores'][index]} in PyTorch")
    if len(answer["results"]) != len(documents):
        problems.append(f"{len(answer['results'])} of {len(documents)} documents were ranked")
    return problems


def _see(client: OpenAI, model: str) -> list[str]:
    problems = []
    for colour, rgb in COLOURS.items():
        parts: list[Any] = [
            {"type": "image_url", "image_url": {"url": _square(rgb)}},
            {"type": "text", "text": "What color is this image?"},
        ]
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=24
        )
        said = answer.choices[0].message.content or ""
        print(f"  a {colour} square: {said}")
        if colour not in said:
            problems.append(f"of a {colour} square {model} says {said!r}")
    return problems


def _square(rgb: tuple[int, int, int]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (200, 200), rgb).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _speak(client: OpenAI, model: str, spoken: Path) -> list[str]:
    if shutil.which("ffmpeg") is None:
        print("  ffmpeg is not installed: wav and pcm need none, mp3, flac, opus and aac do")
    answer = client.audio.speech.create(
        model=model, voice="default", input=SENTENCE, response_format="wav"
    )
    spoken.write_bytes(answer.content)
    print(f"  written to {spoken} ({spoken.stat().st_size / 1024:,.0f} KiB)")
    return []


def _hear(client: OpenAI, model: str, spoken: Path) -> list[str]:
    if not spoken.exists():
        print("  nothing was spoken, so there is nothing to listen to")
        return []
    heard = client.audio.transcriptions.create(model=model, file=spoken, language="en").text
    print(f"  {heard}")
    wrong = set(_words(SENTENCE)) - set(_words(heard))
    if len(wrong) > MOST_WRONG_WORDS:
        return [f"{model} heard {heard!r}, without {', '.join(sorted(wrong))}"]
    return []


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
