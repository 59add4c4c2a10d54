"""Vectors of real (tiny random) models against sentence-transformers on torch, and of MiniLM.

What torch says is data: see `tests/fixtures/vectors/make.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from demo import minilm
from demo.models import Cache
from engines import wire
from engines.base import EngineError, LoadError
from engines.embedding import EmbeddingEngine

MODELS = Path(__file__).parents[1] / "fixtures" / "vectors"
LIMITS = wire.Limits(2**31, 2**27, 2**28, 0, 2**24)
TOLERANCE = 1e-4

Vectors = np.ndarray[Any, np.dtype[np.float32]]


class Driven:
    """An engine and everything it emitted."""

    def __init__(self, path: Path, limits: wire.Limits = LIMITS, **spec: Any) -> None:
        self.events: list[Any] = []
        self.stages: list[wire.Loading] = []
        self.engine = EmbeddingEngine(
            wire.EngineSpec("tested", "embedding", path=str(path), **spec),
            limits,
            self.events.append,
        )
        self.ready = self.engine.load(self.stages.append)

    def run(self) -> None:
        """Steps, with every turn that is asked for, until nothing is left to do."""
        for _ in range(1000):
            if not self.engine.busy:
                if not self.engine.running + self.engine.waiting:
                    return
                self.engine.take_turn()
            self.engine.step()
        raise AssertionError("it never came to an end")

    def embed(self, *inputs: str | list[int], **fields: Any) -> Vectors:
        """[inputs, dimensions]"""
        self.events.clear()
        self.engine.submit(wire.Embed(1, list(inputs), **fields))
        self.run()
        return self.vectors(1, len(inputs))

    def vectors(self, call_id: int, inputs: int) -> Vectors:
        parts = [e for e in self.events if isinstance(e, wire.Bytes) and e.id == call_id]
        assert [part.seq for part in parts] == list(range(len(parts)))
        assert all(len(part.data) <= wire.MAX_PART_BYTES for part in parts)
        return np.frombuffer(b"".join(part.data for part in parts), "<f4").reshape(inputs, -1)

    def usage(self) -> wire.Usage:
        (finished,) = [event for event in self.events if isinstance(event, wire.Finished)]
        return finished.usage


def reference(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((MODELS / name / "reference.json").read_text())
    return read


def near(found: Vectors, wanted: Any) -> None:
    assert found.shape == np.shape(wanted)
    assert np.abs(found - np.array(wanted)).max() < TOLERANCE


def copied(name: str, folder: Path, **files: Any) -> Path:
    """A model with some of its JSON files changed, or gone where they are None."""
    target = folder / name
    shutil.copytree(MODELS / name, target)
    for file, value in files.items():
        path = target / f"{file.replace('__', '/')}.json"
        if value is None:
            path.unlink()
        else:
            path.write_text(json.dumps(value))
    return target


MODES = [
    (name, mode)
    for name in ("bert-embedding", "xlmr-embedding", "modernbert-embedding", "qwen3-embedding")
    for mode in reference(name)["vectors"]
]


@pytest.mark.parametrize(("name", "mode"), MODES, ids=str)
def test_vectors_are_those_of_torch(tmp_path: Path, name: str, mode: str) -> None:
    """All texts in one padded batch; torch had padding on the other side for qwen3."""
    folder = copied(name, tmp_path, **{"1_Pooling__config": {"pooling_mode": mode}})
    wanted = reference(name)
    driven = Driven(folder)
    near(driven.embed(*wanted["texts"]), wanted["vectors"][mode])
    for text, vector in zip(wanted["texts"], wanted["vectors"][mode], strict=True):
        near(driven.embed(text), [vector])


def test_a_dense_layer_and_no_normalisation() -> None:
    wanted = reference("bert-dense")
    driven = Driven(MODELS / "bert-dense")
    assert driven.ready.dimensions == 16
    near(driven.embed(*wanted["texts"]), wanted["vectors"]["cls"])


def test_several_poolings_make_one_long_vector(tmp_path: Path) -> None:
    modes = ["cls", "max"]
    changed = {"1_Pooling__config": {"pooling_mode": modes}}
    folder = copied("bert-embedding", tmp_path, **changed)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    wanted = reference("bert-embedding")
    found = Driven(folder).embed(*wanted["texts"])
    half = found.shape[1] // 2
    for part, mode in zip((found[:, :half], found[:, half:]), modes, strict=True):
        near(part / np.linalg.norm(part, axis=1, keepdims=True), wanted["vectors"][mode])


def test_a_family_decides_where_the_folder_says_nothing(tmp_path: Path) -> None:
    folder = copied("bert-embedding", tmp_path, modules=None, **{"1_Pooling__config": None})
    shutil.rmtree(folder / "1_Pooling")
    wanted = reference("bert-embedding")
    near(Driven(folder).embed(*wanted["texts"]), wanted["vectors"]["mean"])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_weights_of_half_the_size_give_float32(tmp_path: Path, dtype: Any) -> None:
    folder = copied("bert-embedding", tmp_path)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    half = {name: array.astype(dtype) for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), half)
    wanted = reference("bert-embedding")
    found = Driven(folder).embed(*wanted["texts"])
    assert np.abs(found - np.array(wanted["vectors"]["mean"])).max() < 0.02


@pytest.mark.parametrize(
    ("name", "mode"), [("bert-embedding", "mean"), ("qwen3-embedding", "lasttoken")]
)
def test_a_quantised_model(tmp_path: Path, name: str, mode: str) -> None:
    """As mlx-community has them: the same names, with scales and biases beside the weights."""
    config = json.loads((MODELS / name / "config.json").read_text())
    quantization = {"group_size": 32, "bits": 8}
    changed = {"config": config | {"quantization": quantization}}
    folder = copied(name, tmp_path, **changed)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    packed: dict[str, Any] = {}
    for key, array in weights.items():
        if array.ndim == 2 and array.size % 64 == 0 and not key.startswith("pooler"):
            parts = mx.quantize(array, group_size=32, bits=8)
            packed |= zip(
                (key, key.replace("weight", "scales"), key.replace("weight", "biases")),
                parts,
                strict=True,
            )
        else:
            packed[key] = array
    mx.save_safetensors(str(folder / "model.safetensors"), packed)
    wanted = reference(name)
    found = Driven(folder).embed(*wanted["texts"])
    assert np.abs(found - np.array(wanted["vectors"][mode])).max() < 0.02


# --- what goes in ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def xlmr() -> Iterator[Driven]:
    driven = Driven(MODELS / "xlmr-embedding")
    yield driven
    driven.engine.close()


@pytest.mark.parametrize(("prompt", "key"), [("query", "queries"), ("document", None)])
def test_prompts(xlmr: Driven, prompt: str, key: str | None) -> None:
    wanted = reference("xlmr-embedding")
    found = xlmr.embed(*wanted["texts"], prompt=prompt)
    if key is not None:
        near(found, wanted[key])
    else:
        near(found, xlmr.embed(*(f"passage: {text}" for text in wanted["texts"])))


def test_an_unknown_prompt_is_refused(xlmr: Driven) -> None:
    with pytest.raises(EngineError, match="no prompt 'sts'; it has query, passage"):
        xlmr.engine.submit(wire.Embed(1, ["a"], prompt="sts"))


def test_a_prompt_that_is_not_pooled(tmp_path: Path) -> None:
    changed = {"1_Pooling__config": {"pooling_mode": "mean", "include_prompt": False}}
    folder = copied("xlmr-embedding", tmp_path, **changed)
    texts = reference("xlmr-embedding")["texts"]
    driven = Driven(folder)
    plain = driven.embed(*texts)
    prompted = driven.embed(*texts, prompt="query")
    assert np.abs(plain - prompted).max() > TOLERANCE
    near(prompted, driven.embed(*texts, prompt="query"))
    with_prompt = Driven(
        copied("xlmr-embedding", tmp_path / "other", **{"1_Pooling__config": {}})
    ).embed(*texts, prompt="query")
    assert np.abs(with_prompt - prompted).max() > TOLERANCE


def tokens_of(driven: Driven, text: str, *, special: bool) -> list[int]:
    answer = driven.engine.answer(wire.Tokenize(9, "", text, add_special_tokens=special))
    assert isinstance(answer, wire.Tokenized)
    return answer.token_ids


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("prompt", [None, "query"])
def test_tokens_are_as_good_as_their_text(xlmr: Driven, special: bool, prompt: str | None) -> None:
    text = "bread" if special and prompt else reference("xlmr-embedding")["texts"][2]
    tokens = tokens_of(xlmr, text, special=special)
    near(xlmr.embed(tokens, "another", prompt=prompt)[:1], xlmr.embed(text, prompt=prompt))


def test_a_token_that_the_model_does_not_have_is_refused(xlmr: Driven) -> None:
    with pytest.raises(EngineError, match=r"input\[1\]: token id 99999 is not in"):
        xlmr.engine.submit(wire.Embed(1, [[5], [5, 99999]]))


def test_a_text_that_is_too_long(xlmr: Driven) -> None:
    """514 positions would be 512 tokens: the padding token's are not used."""
    assert xlmr.ready.context_length == 64
    long = "bread " * 100
    with pytest.raises(EngineError) as caught:
        xlmr.engine.submit(wire.Embed(1, ["short", long]))
    assert caught.value.code == "context_length_exceeded"
    length = len(tokens_of(xlmr, long, special=True))
    assert f"input[1] has {length} tokens, and this model takes 64" in str(caught.value)
    found = xlmr.embed("short", long, truncate=True)
    assert xlmr.usage().prompt_tokens == 64 + len(tokens_of(xlmr, "short", special=True))
    near(found[1:], xlmr.embed(tokens_of(xlmr, long, special=False)[:62]))


def test_the_longest_text_is_the_smallest_of_what_is_said(tmp_path: Path) -> None:
    assert Driven(MODELS / "bert-embedding").ready.context_length == 48
    assert Driven(MODELS / "bert-embedding", context_length=20).ready.context_length == 20
    folder = copied("bert-embedding", tmp_path, sentence_bert_config=None)
    assert Driven(folder).ready.context_length == 66


def test_dimensions_of_a_model_that_can_be_shortened(tmp_path: Path) -> None:
    config = json.loads((MODELS / "qwen3-embedding" / "config.json").read_text())
    wanted = reference("qwen3-embedding")
    changed = {"config": config | {"matryoshka_dimensions": [8, 16]}}
    driven = Driven(copied("qwen3-embedding", tmp_path, **changed))
    near(driven.embed(*wanted["texts"], dimensions=8), wanted["short"])
    near(driven.embed(*wanted["texts"], dimensions=32), wanted["vectors"]["lasttoken"])
    with pytest.raises(EngineError, match="has 32; it can be shortened to 8, 16"):
        driven.engine.submit(wire.Embed(1, ["a"], dimensions=9))


def test_dimensions_of_a_model_that_cannot(xlmr: Driven) -> None:
    with pytest.raises(EngineError, match=r"dimensions is 16, but a vector of this model has 32$"):
        xlmr.engine.submit(wire.Embed(1, ["a"], dimensions=16))


# --- calls together -------------------------------------------------------------------------------


def test_calls_share_batches_and_keep_their_own(xlmr: Driven) -> None:
    wanted = reference("xlmr-embedding")
    texts, vectors = wanted["texts"], wanted["vectors"]["cls"]
    xlmr.events.clear()
    xlmr.engine.submit(wire.Embed(1, texts))
    xlmr.engine.submit(wire.Embed(2, list(reversed(texts))))
    xlmr.engine.submit(wire.Embed(3, texts[:1] * 40))
    xlmr.engine.cancel(3)
    xlmr.run()
    near(xlmr.vectors(1, len(texts)), vectors)
    near(xlmr.vectors(2, len(texts)), vectors[::-1])
    ends = [e for e in xlmr.events if isinstance(e, wire.Finished | wire.Failed)]
    assert sorted((e.id, type(e).__name__) for e in ends) == [
        (1, "Finished"),
        (2, "Finished"),
        (3, "Failed"),
    ]


def test_many_texts_come_in_parts_and_in_order(xlmr: Driven) -> None:
    texts = [f"word {number}" for number in range(300)]
    found = xlmr.embed(*texts)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    near(found[217:218], xlmr.embed(texts[217]))
    assert xlmr.ready.memory.weights_bytes > 100_000
    assert xlmr.engine.memory().weights_bytes == xlmr.ready.memory.weights_bytes


# --- loads that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": {"model_type": "mpnet"}}, "of the kind 'mpnet', of which no embeddings"),
        ({"1_Pooling__config": {"pooling_mode": "median"}}, "the pooling 'median'"),
        ({"modules": [{"type": "x.LSTM", "path": "1"}]}, "a module 'LSTM'"),
        ({"modules": "text"}, "holds no JSON list"),
    ],
)
def test_a_load_that_fails_says_why(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        Driven(copied("bert-embedding", tmp_path, **changes))


def test_an_activation_that_mlx_does_not_have(tmp_path: Path) -> None:
    config = json.loads((MODELS / "bert-embedding" / "config.json").read_text())
    folder = copied("bert-embedding", tmp_path, config=config | {"hidden_act": "relu"})
    with pytest.raises(LoadError, match="hidden_act is 'relu'"):
        Driven(folder)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = copied("bert-embedding", tmp_path)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    weights.pop("embeddings.LayerNorm.bias")
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(LoadError, match=r"embeddings\.LayerNorm\.bias"):
        Driven(folder)


# --- a real one -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Iterator[Driven]:
    name = minilm.RECIPE.name
    driven = Driven(Cache().ensure([name])[name])
    yield driven
    driven.engine.close()


def test_minilm_gives_the_vectors_of_torch(real: Driven) -> None:
    wanted = json.loads((MODELS / "minilm.json").read_text())
    assert (real.ready.dimensions, real.ready.context_length) == (384, 256)
    near(real.embed(*wanted["texts"]), wanted["vectors"])


def test_minilm_finds_what_belongs_together(real: Driven) -> None:
    found = minilm.similarities(lambda texts: real.embed(*texts).tolist())
    assert max(found) == found[minilm.NEAREST] > 0.3
    assert all(other < 0.15 for other in found if other != found[minilm.NEAREST])
    sentences = ["A man is eating food.", "A man is eating a piece of bread.", "The moon is far."]
    vectors = real.embed(*sentences)
    assert vectors[0] @ vectors[1] > 0.6
    assert abs(vectors[0] @ vectors[2]) < 0.2
