"""`warm_prompts` in the registry and in files: what is taken, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.registry.load import Loaded, parse
from gateway.registry.warm import MOST_PROMPTS, WarmPrompt

SYSTEM = {"role": "system", "content": "You are an agent."}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks."}}


def loaded(written: Any, base: Path = Path("/nowhere")) -> Loaded:
    entry = {"name": "a", "engine": "scripted", "warm_prompts": written}
    text = json.dumps({"models": [entry]}, indent=1)
    return parse(text.encode(), file="r.yaml", base=base, environ={"HOME": str(base)})


def warm(written: Any, base: Path = Path("/nowhere")) -> tuple[WarmPrompt, ...]:
    found = loaded(written, base)
    assert found.problems == ()
    return found.models[0].warm


def test_lists_of_messages_and_mappings() -> None:
    parts = [{"type": "text", "text": "You are "}, {"type": "text", "text": "an agent."}]
    developer = {"role": "developer", "content": parts}
    assert warm([[developer], {"messages": [SYSTEM], "tools": [TOOL]}]) == (
        WarmPrompt([SYSTEM]),
        WarmPrompt(
            [SYSTEM],
            [
                {
                    "type": "function",
                    "function": {
                        "name": "look",
                        "description": "Looks.",
                        "parameters": {"type": "object", "properties": {}},
                    },
                }
            ],
        ),
    )


@pytest.mark.parametrize("written", ["agents.json", "~/agents.json"])
def test_a_file_in_the_form_of_other_servers(tmp_path: Path, written: str) -> None:
    talk = [SYSTEM, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
    (tmp_path / "agents.json").write_text(json.dumps([[SYSTEM], talk]))
    assert warm(written, tmp_path) == (WarmPrompt([SYSTEM]), WarmPrompt(talk))


def test_none() -> None:
    assert warm(None) == warm([]) == ()


@pytest.mark.parametrize(
    ("written", "place", "message"),
    [
        ([[]], "[0]", "a list of messages"),
        (["text"], "[0]", "a list of messages"),
        ([[SYSTEM], [{"role": "system"}]], "[1][0]", "a list of messages"),
        ([[{"role": "sytem", "content": "x"}]], "[0][0].role", "expected system, developer"),
        ([[{"role": "user", "content": 5}]], "[0][0].content", "expected text"),
        ([{"messages": [SYSTEM], "tool": []}], "[0]", "a mapping with messages"),
        (
            [{"messages": [SYSTEM], "tools": [{"type": "x"}]}],
            "[0].tools[0].type",
            "a list of tools",
        ),
        ([[SYSTEM]] * (MOST_PROMPTS + 1), "", f"there may be {MOST_PROMPTS}"),
    ],
)
def test_what_is_wrong_in_the_registry_is_an_error(written: Any, place: str, message: str) -> None:
    found = loaded(written)
    (problem,) = found.errors
    assert problem.key == f"models[0].warm_prompts{place}"
    assert message in problem.message
    assert problem.line >= 6
    assert found.registry is None


@pytest.mark.parametrize("written", [5, True, {"messages": []}])
def test_neither_a_list_nor_a_file(written: Any) -> None:
    (problem,) = loaded(written).errors
    assert problem.key == "models[0].warm_prompts"
    assert "or a list" in problem.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "agents.json: cannot be read: No such file"),
        ("[[", "not JSON"),
        ("{}", "expected a list of prompts"),
        ('[[{"role": "user", "content": null}]]', "agents.json: [0][0].content: expected text"),
        (json.dumps([[SYSTEM]] * 40), "40 prompts; there may be 32"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_warning(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "agents.json").write_text(content)
    found = loaded("agents.json", tmp_path)
    (problem,) = found.problems
    assert (problem.level, problem.key) == ("warning", "models[0].warm_prompts")
    assert message in problem.message
    assert found.models[0].warm == ()
