from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from demo import daemon, run
from demo.choice import Choice
from demo.kinds import Part, Tell

Demo = Callable[..., list[str]]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """The demo of models `a` and `b` against the stand-in for the gateway, with its faults."""

    def serve(*parts: Part, **faults: Any) -> list[str]:
        program = tmp_path / "python"
        script = Path(__file__).with_name("stand_in.py")
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("STAND_IN", json.dumps(faults))
        monkeypatch.setattr(sys, "executable", str(program))
        first, second = (Choice(name, tmp_path, 1.0) for name in "ab")
        return run.serve_and_tell(first, second, parts, keep=False)

    return serve


def test_a_good_gateway_has_no_problems(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo() == []
    said = capsys.readouterr().out
    assert said.count("The capital of France is Paris.") == 3
    assert "evicted to make room: a" in said
    assert "evicted to make room: b" in said
    labels = [line.split("  ")[0] for line in said[said.index("MiB  ") :].splitlines()]
    assert labels[:6] == [
        *("MiB", "nothing loaded", "a answered", "b answered", "a answered", "daemon stopped"),
    ]
    assert "The daemon stopped on SIGTERM with exit code 0; no process is left." in said


def test_a_wrong_answer_is_a_problem(demo: Demo) -> None:
    problems = demo(answer="It is Lyon.")
    assert len(problems) == 3
    assert all("Lyon" in problem and "without 'Paris'" in problem for problem in problems)


def test_an_engine_that_outlives_its_eviction_is_a_problem(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_ENGINES_GONE_S", 0.1)
    problems = demo(keep_engines=True)
    assert sum("outlived its eviction" in problem for problem in problems) == 2
    assert sum("was left behind" in problem for problem in problems) == 3


def test_other_kinds_are_shown_after_them(
    demo: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One fails, one is wrong, one lacks a package: each is told, and the others are shown."""

    def fail(client: OpenAI, model: str) -> list[str]:
        raise openai.OpenAIError("no room")

    def part(name: str, tell: Tell, *packages: str) -> Part:
        return Part("speech", "says something", Choice(name, tmp_path), tell, packages)

    problems = demo(
        part("failing", fail),
        part("wrong", lambda client, model: [f"{model} is wrong"]),
        part("lacking", fail, "json", "no_such_package"),
        part("right", lambda client, model: []),
    )
    assert problems == ["failing: OpenAIError: no room", "wrong is wrong"]
    said = capsys.readouterr().out
    assert "not shown: it needs the Python packages no_such_package" in said
    assert "\nright answered " in said
    assert "lacking answered" not in said


def test_how_to_call_names_address_and_model() -> None:
    text = run.how_to_call("http://127.0.0.1:1", "a/b")
    assert "curl http://127.0.0.1:1/v1/chat/completions" in text
    assert '"model": "a/b"' in text
    assert 'base_url="http://127.0.0.1:1/v1"' in text
