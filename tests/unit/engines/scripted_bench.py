"""The scripted engine on a clock of its own, for tests that drive it step by step."""

from __future__ import annotations

import json
from typing import Any

from engines import wire
from engines.base import Emitted
from engines.scripted import ScriptedEngine

LIMITS = wire.Limits(0, 0, 0, 0, 0)


class FakeMachine:
    """A clock that only `wait` moves, and a note of everything else."""

    def __init__(self) -> None:
        self.time = 100.0
        self.waits: list[float] = []
        self.done: list[str] = []
        self.stderr: list[str] = []

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    def exit(self, code: int) -> None:
        self.done.append(f"exit {code}")

    def hang(self) -> None:
        self.done.append("hang")

    def freeze(self) -> None:
        self.done.append("freeze")

    def write_stderr(self, text: str) -> None:
        self.stderr.append(text)


class Bench:
    """An engine, its machine and everything it emitted."""

    def __init__(self, context_length: int | None = None, **options: Any) -> None:
        self.machine = FakeMachine()
        self.events: list[wire.CallEvent] = []
        spec = wire.EngineSpec(
            "scripted", "scripted", context_length=context_length, scripted=options
        )
        self.engine = ScriptedEngine(spec, LIMITS, self._emit, self.machine)

    def _emit(self, event: Emitted) -> None:
        assert not isinstance(event, wire.WantTurn | wire.TurnOver)
        self.events.append(event)

    def submit(self, content: object = "hi", call_id: int = 1, **fields: Any) -> None:
        messages = [{"role": "user", "content": content}]
        self.engine.submit(wire.Generate(call_id, messages, **fields))

    def script(self, *steps: object, call_id: int = 1, finish: str = "stop", **fields: Any) -> None:
        self.submit(json.dumps({"script": steps, "finish": finish}), call_id, **fields)

    def run(self, max_steps: int = 10_000) -> Bench:
        for _ in range(max_steps):
            if not self.engine.busy:
                return self
            self.engine.step()
        raise AssertionError("the engine never came to an end")

    def texts(self, call_id: int = 1) -> list[str]:
        return [
            event.text
            for event in self.events
            if isinstance(event, wire.TextDelta) and event.id == call_id
        ]

    def ends(self) -> list[tuple[str, str | None]]:
        return [
            (event.reason, event.stop_sequence)
            for event in self.events
            if isinstance(event, wire.ChoiceFinished)
        ]

    def usage(self) -> wire.Usage:
        (finished,) = [event for event in self.events if isinstance(event, wire.Finished)]
        return finished.usage

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]
