"""A vision engine driven step by step, and pictures for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from engines import wire
from engines.vision.engine import VisionEngine

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "tiny-qwen2-vl"

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 180, 40),
    "blue": (30, 50, 220),
    "yellow": (235, 225, 40),
    "black": (10, 10, 10),
    "white": (245, 245, 245),
}
SIZES = ((320, 200), (64, 64), (200, 320), (90, 40), (500, 500), (28, 56))
"""One for each colour, so that no two prompts of the six need be equally long."""

QUESTION = "What color is this image?"
NO_IMAGE = "I do not see any image."

LIMITS = wire.Limits(
    charge_bytes=2**31,
    weights_bytes=2**23,
    kv_bytes=2**27,
    prompt_cache_bytes=2**20,
    mlx_cache_bytes=2**24,
)
GREEDY = wire.Sampling(temperature=0.0)


def named(colour: str) -> str:
    return f"The image is {colour}."


def two(first: str, second: str) -> str:
    return f"First {first}, then {second}."


def picture(folder: Path, colour: str, size: tuple[int, int] = (320, 200)) -> wire.Media:
    """A file of one colour."""
    path = folder / f"{colour}-{size[0]}x{size[1]}.png"
    if not path.exists():
        Image.new("RGB", size, COLOURS[colour]).save(path)
    return media_of(path)


def media_of(path: Path, kind: Any = "image", media_type: str = "image/png") -> wire.Media:
    data = path.read_bytes()
    return wire.Media(kind, str(path), media_type, len(data), hashlib.sha256(data).hexdigest())


def asking(media: Sequence[wire.Media], text: str = QUESTION) -> list[dict[str, Any]]:
    """One user message: its media, then the text."""
    parts = [{"type": each.kind, "media": index} for index, each in enumerate(media)]
    content = [*parts, {"type": "text", "text": text}] if parts else text
    return [{"role": "user", "content": content}]


class Driven:
    """An engine and everything it emitted."""

    def __init__(self, limits: wire.Limits = LIMITS, **spec: Any) -> None:
        self.events: list[Any] = []
        self.stages: list[wire.Loading] = []
        spec = {"path": str(MODEL), **spec}
        self.engine = VisionEngine(
            wire.EngineSpec("tested", "vision", **spec), limits, self.events.append
        )
        self.ready = self.engine.load(self.stages.append)

    def submit(
        self, call_id: int, media: Sequence[wire.Media] = (), text: str = QUESTION, **options: Any
    ) -> None:
        options.setdefault("sampling", GREEDY)
        options.setdefault("max_tokens", 24)
        options.setdefault("messages", asking(media, text))
        self.engine.submit(wire.Generate(call_id, media=tuple(media), **options))

    def run(self, at_most: int = 2000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(at_most):
            if not self.engine.busy:
                return
            self.engine.step()
        raise AssertionError(f"still busy after {at_most} steps")

    def ask(self, *media: wire.Media, text: str = QUESTION, **options: Any) -> str:
        """The answer to one question, alone in the batch."""
        self.events.clear()
        self.submit(0, media, text, **options)
        self.run()
        return self.text(0)

    def of(self, call_id: int) -> list[Any]:
        return [event for event in self.events if event.id == call_id]

    def text(self, call_id: int, choice: int = 0) -> str:
        deltas = [e for e in self.of(call_id) if isinstance(e, wire.TextDelta)]
        return "".join(delta.text for delta in deltas if delta.choice == choice)

    def end(self, call_id: int) -> wire.Finished | wire.Failed:
        """The one end of a call, which is its last event."""
        ends: list[wire.Finished | wire.Failed] = [
            event for event in self.of(call_id) if isinstance(event, wire.Finished | wire.Failed)
        ]
        assert len(ends) == 1
        assert self.of(call_id)[-1] == ends[0]
        return ends[0]
