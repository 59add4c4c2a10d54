"""A first registry: what is found, what fits, and that it can be served."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.cli import parse as parse_arguments
from gateway.registry.load import parse
from gateway.registry.starter import Candidate, local_models, starter
from gateway.supervisor.probe import SystemMemory

GIB = 2**30
MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """A Hugging Face cache with one whole model and one that was never finished."""
    hub = tmp_path / "hub"
    whole = hub / "models--org--Tiny-Model"
    shutil.copytree(MODELS / "random-nano", whole / "snapshots" / "abc")
    (whole / "refs").mkdir()
    (whole / "refs" / "main").write_text("abc")
    (hub / "models--org--unfinished" / "refs").mkdir(parents=True)
    return {"HF_HUB_CACHE": str(hub), "HOME": str(tmp_path)}


def served(text: str, environ: dict[str, str]) -> list[str]:
    machine = SystemMemory(32 * GIB, 32 * GIB)
    loaded = parse(text.encode(), file="r", base=Path("/"), environ=environ, machine=machine)
    assert not loaded.errors, loaded.errors
    assert all(model.unavailable is None for model in loaded.models)
    return [model.entry.name for model in loaded.models]


def test_models_of_the_cache_and_of_folders_are_found(cache: dict[str, str]) -> None:
    found = local_models([MODELS], cache, 32 * GIB)
    assert ("model", "org/Tiny-Model") in [(each.key, each.value) for each in found]
    names = served(starter(found, 32 * GIB), cache)
    assert {"tiny-model", "random-nano", "scripted-hermes"} <= set(names)
    assert len(names) == len(set(names)) == len(found)


def test_what_does_not_fit_is_left_out(cache: dict[str, str]) -> None:
    (found,) = local_models([], cache, 32 * GIB)
    large = Candidate(found.key, "org/Large", found.model, 40 * GIB)
    text = starter([large, found], 32 * GIB)
    assert "Large" not in text
    assert served(text, cache) == ["tiny-model"]


def test_names_are_told_apart(cache: dict[str, str]) -> None:
    (found,) = local_models([], cache, 32 * GIB)
    assert served(starter([found, found], 32 * GIB), cache) == ["tiny-model", "tiny-model-2"]


def test_without_models_it_shows_how_to_add_one(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    text = starter(local_models([tmp_path], environ, GIB), GIB)
    assert "# - name: my-model" in text
    assert served(text, environ) == []


def test_a_file_that_is_there_is_replaced_only_when_forced(
    tmp_path: Path,
    cache: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in cache.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "new" / "registry.yaml"
    first = parse_arguments(["init", "-o", str(path)])
    assert first.run(first) == 0
    assert f"wrote {path} with 1 model\nnext: mlx-gateway serve --config" in capsys.readouterr().out
    assert first.run(first) == 1
    assert "--force replaces it" in capsys.readouterr().err
    forced = parse_arguments(["init", "--force", "-o", str(path)])
    assert forced.run(forced) == 0
    assert served(path.read_text(), cache) == ["tiny-model"]
