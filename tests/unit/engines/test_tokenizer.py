"""The tokenizer worker's engine: many models' tokenizers, none of their weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engines import tokenizer, wire
from engines.base import EngineError
from engines.tokenizer import TokenizerEngine

HERMES = Path(__file__).parents[2] / "fixtures" / "models" / "scripted-hermes"
SPEC = wire.EngineSpec("tokenizer worker", "tokenizer")
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Say hello. <|im_end|>"}]


@pytest.fixture
def engine() -> TokenizerEngine:
    made = TokenizerEngine(SPEC, wire.Limits(0, 0, 0, 0, 0), lambda event: None)
    made.load(lambda loading: None)
    return made


def test_a_folder_without_weights_is_enough(engine: TokenizerEngine, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(HERMES / name, tmp_path / name)
    counted = engine.answer(wire.CountTokens(1, str(tmp_path), MESSAGES))
    assert isinstance(counted, wire.Counted)
    listed = engine.answer(wire.CountTokens(2, str(tmp_path), MESSAGES, listed=True))
    assert isinstance(listed, wire.Tokenized)
    assert (len(listed.token_ids), listed.context_length) == (counted.tokens, 8192)
    back = engine.answer(wire.Detokenize(3, str(tmp_path), listed.token_ids))
    assert isinstance(back, wire.Detokenized)
    assert "Say hello. <|im_end|>" in back.text


def test_a_folder_that_is_no_model_is_named(engine: TokenizerEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=str(tmp_path)) as caught:
        engine.answer(wire.Tokenize(1, str(tmp_path), "a"))
    assert caught.value.code == "engine_error"


def test_scripted_models_are_counted_by_words(engine: TokenizerEngine) -> None:
    assert engine.answer(wire.CountTokens(1, "", MESSAGES)) == wire.Counted(1, 3)


def test_it_keeps_the_tokenizers_used_last(
    engine: TokenizerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "MOST_TOKENIZERS", 2)
    built: list[str] = []
    build = tokenizer._load

    def counted(path: Path, trust_remote_code: bool) -> Any:
        built.append(path.name)
        return build(path, trust_remote_code)

    monkeypatch.setattr(tokenizer, "_load", counted)
    for name in "abc":
        shutil.copytree(HERMES, tmp_path / name)
    for name in "abacab":
        engine.answer(wire.Tokenize(1, str(tmp_path / name), "text"))
    assert built == ["a", "b", "c", "b"]


def test_it_takes_no_calls(engine: TokenizerEngine) -> None:
    with pytest.raises(EngineError, match="no model"):
        engine.submit(wire.Generate(1))
    engine.cancel(1)
    assert not engine.busy
    assert (engine.running, engine.waiting) == (0, 0)
    assert engine.memory() == wire.Memory()
    engine.close()
