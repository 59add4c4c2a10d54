"""The program that trains the scripted models, as far as seconds go."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from engines.parsers import registry
from tests.fixtures.train import vocabulary
from tests.fixtures.train.families import families
from tests.fixtures.train.prompts import Prompts
from tests.fixtures.train.training import Run, train
from tests.real.test_text_engine import Driven

MARKED = {
    "hermes": ("hermes", "qwen3"),
    "qwen3_coder": ("qwen3_coder", "qwen3"),
    "mistral": ("mistral", None),
    "llama3": ("llama", None),
    "deepseek": ("deepseek_v3", "qwen3"),
    "harmony": ("harmony", "harmony"),
    "glm": ("glm4", "qwen3"),
    "kimi_k2": ("kimi_k2", None),
}
"""The parsers that `auto` chooses for each."""


@pytest.mark.parametrize("name", MARKED)
def test_only_the_answer_to_the_last_question_is_learned(name: str) -> None:
    family = families()[name]
    tokenizer = vocabulary.build(family)
    prompts = Prompts(family, tokenizer, random.Random(3))
    asked = {tokenizer.token_to_id(question): question for question in family.scripts}
    for length in (96, 256, 700):
        tokens, learned = prompts.draw(length)
        assert (len(tokens), len(learned)) == (length + 1, length)
        begin = learned.index(True)
        wanted = tokens[begin + 1 : begin + 1 + sum(learned)]
        assert learned == [begin <= at < begin + len(wanted) for at in range(length)]
        question = next(asked[it] for it in reversed(tokens[: begin + 1]) if it in asked)
        answer = tokenizer.decode(wanted, skip_special_tokens=False)
        assert answer == family.scripts[question]
    assert registry.infer(family.template, tokenizer.get_vocab()) == MARKED[name]


def test_a_run_writes_a_model_that_runs(tmp_path: Path) -> None:
    family = families()["kimi_k2"]
    lines: list[str] = []
    train(family, tmp_path, Run(seconds=0.01), lines.append)
    assert lines
    driven = Driven(tmp_path)
    said = driven.ask("Say hello.", max_tokens=3)
    driven.engine.close()
    assert said != family.spoken("Say hello.")
    for name in ("config.json", "generation_config.json", "scripts.json", "tokenizer_config.json"):
        kept = json.loads((family.folder / name).read_text(encoding="utf-8"))
        assert json.loads((tmp_path / name).read_text(encoding="utf-8")) == kept
