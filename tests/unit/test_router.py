"""Names to entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import InvalidRequest, ModelNotFound
from gateway.registry.find import Model, find
from gateway.registry.schema import Entry, Kind
from gateway.router import Router, served_by


def model(name: str, *aliases: str, kind: Kind | None = None) -> Model:
    entry = Entry(name=name, aliases=aliases, engine="scripted", kind=kind)
    return find(entry, base=Path(), environ={})


BASE = model("llama-8b", "llama", "gpt-4o")
VARIANT = Model(entry=Entry(name="llama-8b-brief", of="llama-8b", kind="text"))
VECTORS = model("embedder", kind="embedding")
ROUTER = Router([BASE, VARIANT, VECTORS])


@pytest.mark.parametrize("name", ["llama-8b", "llama", "gpt-4o"])
def test_a_model_is_found_by_its_name_and_its_aliases(name: str) -> None:
    assert ROUTER.resolve(name, "text") is BASE


def test_a_variant_is_served_by_its_base() -> None:
    assert served_by(ROUTER.resolve("llama-8b-brief", "text")) == "llama-8b"
    assert served_by(BASE) == "llama-8b"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-8", "did you mean 'llama-8b' or 'llama' or 'llama-8b-brief'?"),
        ("gpt-4", "did you mean 'gpt-4o'?"),
        ("mistral", "such as embedder, gpt-4o, llama, llama-8b, llama-8b-brief"),
        ("LLAMA", "GET /v1/models lists what there is"),
        ("x" * 200, f"no model '{'x' * 100}…' in"),
    ],
)
def test_an_unknown_name_is_refused_with_what_comes_close(name: str, words: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        ROUTER.find(name)
    assert words in caught.value.message
    assert caught.value.param == "model"


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(ModelNotFound, match="which has no models yet"):
        Router([]).find("llama")


def test_a_vision_model_does_text_too() -> None:
    eyes = model("eyes", kind="vision")
    router = Router([eyes])
    assert router.resolve("eyes", "text", "vision") is eyes
    with pytest.raises(InvalidRequest, match=r"'eyes' is for chat with images .*, not for chat"):
        router.resolve("eyes", "text")


def test_a_model_of_another_kind_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"'embedder' is for embeddings \(/v1/embeddings\), not"
    ):
        ROUTER.resolve("embedder", "text")
