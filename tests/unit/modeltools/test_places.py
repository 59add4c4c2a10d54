"""Where models are looked for, and what a conversion is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines import wire
from gateway.modeltools.local import default_target, find_local, looks_like_id, staging_of
from gateway.modeltools.recipes import command, mistake, record
from gateway.registry.find import NotFound


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """With one model in the Hugging Face cache, of two revisions."""
    cache = tmp_path / "hub" / "models--maker--it"
    for commit in ("aaa", "bbb"):
        (cache / "snapshots" / commit).mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("aaa")
    (cache / "refs" / "old").write_text("bbb\n")
    return {"HF_HUB_CACHE": str(tmp_path / "hub"), "MLX_GATEWAY_STATE_DIR": str(tmp_path / "state")}


@pytest.mark.parametrize(
    ("revision", "commit"), [(None, "aaa"), ("main", "aaa"), ("old", "bbb"), ("bbb", "bbb")]
)
def test_a_revision_of_the_cache(
    environ: dict[str, str], revision: str | None, commit: str
) -> None:
    assert find_local("maker/it", revision, environ).name == commit


@pytest.mark.parametrize(
    ("name", "revision", "told"),
    [
        ("maker/it", "ccc", "is not in the local"),
        ("maker/it", "../../x", "is no revision"),
        ("./here", "main", "goes with a Hugging Face id"),
        ("maker/other", None, "not in the local Hugging Face cache"),
        ("/no/such/folder", None, "no such folder"),
    ],
)
def test_what_is_not_there(
    environ: dict[str, str], name: str, revision: str | None, told: str
) -> None:
    with pytest.raises(NotFound, match=told):
        find_local(name, revision, environ)


def test_what_was_fetched_comes_first(environ: dict[str, str]) -> None:
    fetched = default_target("maker/it", environ)
    fetched.mkdir(parents=True)
    assert find_local("maker/it", None, environ) == fetched
    assert staging_of(fetched, "acquiring").parent == fetched.parent


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("maker/it", True),
        ("a/b-c.d_e", True),
        ("it", False),
        ("../it", False),
        ("/a/b", False),
        ("a/b/c", False),
        ("a/..b", False),
        ("a/b..c", False),
    ],
)
def test_ids(name: str, is_one: bool) -> None:
    assert looks_like_id(name) is is_one


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (wire.Recipe(), None),
        (wire.Recipe(quantize=True, q_bits=4, quant_predicate="mixed_3_6"), None),
        (wire.Recipe(q_bits=4), "need --quantize"),
        (wire.Recipe(q_mode="mxfp4"), "need --quantize"),
        (wire.Recipe(quantize=True, q_mode="mxfp4", quant_predicate="mixed_3_6"), "affine only"),
    ],
)
def test_recipes(recipe: wire.Recipe, told: str | None) -> None:
    why = mistake(recipe)
    assert (why is None) if told is None else (why is not None and told in why)


def test_the_command_that_does_the_same() -> None:
    recipe = wire.Recipe(quantize=True, q_bits=4, dtype="bfloat16")
    line = " ".join(command("/a", Path("/b"), "vision", recipe))
    assert line == (
        "python -m mlx_vlm convert --hf-path /a --mlx-path /b --quantize --q-mode affine "
        "--q-bits 4 --dtype bfloat16"
    )
    kept = record("/my model", Path("/b"), "text", wire.Recipe(), {"commit": "c"})
    assert kept["command"].startswith("python -m mlx_lm convert --hf-path '/my model' ")
    assert kept["source"] == {"path": "/my model", "commit": "c"}
