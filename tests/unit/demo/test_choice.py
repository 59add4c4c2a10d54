from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from demo import choice
from demo.choice import Choice, choose, registry
from demo.models import TEXT_MODELS
from demo.wheels import CACHE_VARIABLE, ModelError

GIB = 2**30


def model(folder: Path, size: int) -> Path:
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


@pytest.fixture
def small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Both small models are there already; the list collects which ones were asked for."""
    asked: list[list[str]] = []
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    for name in TEXT_MODELS:
        model(tmp_path / name, 1000)
    monkeypatch.setattr(choice, "make", lambda names: asked.append(list(names)))
    return asked


@pytest.mark.parametrize(
    ("sizes", "kv_gb"),
    [((538_000_000, 269_000_000), 0.25), ((4 * GIB, 20 * GIB), 1.0), ((GIB, GIB), 1.0)],
)
def test_the_budget_holds_either_model_and_never_both(
    tmp_path: Path, sizes: tuple[int, int], kv_gb: float
) -> None:
    first, second = (
        Choice(f"m{index}", model(tmp_path / str(index), size), kv_gb)
        for index, size in enumerate(sizes)
    )
    document: Any = yaml.safe_load(registry(first, second))
    budget = document["manager"]["memory_budget_gb"] * GIB
    charges = first.charge_bytes, second.charge_bytes
    assert max(charges) < budget < sum(charges)
    assert [entry["name"] for entry in document["models"]] == ["m0", "m1"]


def test_others_are_served_beside_them(tmp_path: Path) -> None:
    first, second = (Choice(name, model(tmp_path / name, 10), 1.0) for name in "ab")
    document: Any = yaml.safe_load(registry(first, second, [Choice("c", tmp_path / "c")]))
    alone: Any = yaml.safe_load(registry(first, second))
    assert document["models"][2] == {"name": "c", "path": str(tmp_path / "c")}
    assert document["manager"] == alone["manager"]


def test_a_path_is_quoted(tmp_path: Path) -> None:
    folder = model(tmp_path / 'a: "b" #c', 10)
    one = Choice('a: "b" #c', folder, 1.0)
    document: Any = yaml.safe_load(registry(one, one))
    assert document["models"][0] == {
        "name": one.name,
        "path": str(folder),
        "kv_memory_gb": 1.0,
    }


def test_without_a_wish_both_small_models_are_served(small_models: list[list[str]]) -> None:
    assert [one.name for one in choose([])] == list(TEXT_MODELS)
    assert small_models == [list(TEXT_MODELS)]


def test_one_folder_is_served_beside_a_small_model(
    tmp_path: Path, small_models: list[list[str]]
) -> None:
    folder = model(tmp_path / "mine", 10)
    first, second = choose([str(folder)])
    assert (first.name, first.folder) == ("mine", folder)
    assert second.name == next(iter(TEXT_MODELS))
    assert small_models == [[second.name]]


def test_a_folder_without_weights_is_refused(tmp_path: Path, small_models: list[list[str]]) -> None:
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors file"):
        choose([str(tmp_path)])
    assert small_models
