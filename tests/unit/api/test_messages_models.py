"""The list of models as Anthropic's clients page through it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.messages_models import model_info, model_page
from gateway.errors import InvalidRequest


def card(name: str) -> dict[str, Any]:
    return {"id": name, "name": name, "created": 0, "context_length": 4096}


CARDS = [card(name) for name in "abcde"]


def test_one_model() -> None:
    assert model_info(card("a")) == {
        "type": "model",
        "id": "a",
        "display_name": "a",
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 4096,
        "max_tokens": 4096,
    }


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("", "abcde", False),
        ("limit=5", "abcde", False),
        ("limit=2", "ab", True),
        ("limit=2&after_id=b", "cd", True),
        ("limit=2&after_id=d", "e", False),
        ("after_id=e", "", False),
        ("limit=2&before_id=e", "cd", True),
        ("limit=2&before_id=c", "ab", False),
        ("before_id=a", "", False),
        ("lifecycle=active&beta=true", "abcde", False),
    ],
)
def test_pages(query: str, ids: str, has_more: bool) -> None:
    page = model_page(CARDS, query.encode())
    assert [model["id"] for model in page["data"]] == list(ids)
    assert page["has_more"] is has_more
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


def test_a_page_has_twenty_models_unless_told_otherwise() -> None:
    page = model_page([card(f"m{number}") for number in range(21)], b"")
    assert (len(page["data"]), page["has_more"], page["last_id"]) == (20, True, "m19")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        *((f"limit={limit}", "limit") for limit in ("0", "1001", "-1", "x", "9" * 5000)),
        ("after_id=z", "after_id"),
        ("before_id=z", "before_id"),
    ],
)
def test_bad_queries_are_refused_by_name(query: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        model_page(CARDS, query.encode())
    assert refused.value.param == param
