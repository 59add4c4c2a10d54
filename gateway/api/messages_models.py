"""The list of models in Anthropic's shape, made from the cards that the OpenAI list shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from gateway.errors import InvalidRequest

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000

Card = dict[str, Any]


def model_info(card: Card) -> Card:
    """One model. The context is shared by input and output, so each may have all of it."""
    created = datetime.fromtimestamp(card["created"], UTC)
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["name"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": card["context_length"],
        "max_tokens": card["context_length"],
    }


def model_page(cards: Sequence[Card], query: bytes) -> Card:
    """One page: `limit` models after `after_id`, or the last ones before `before_id`.

    Raises `InvalidRequest` for a limit outside 1 to 1000 and for an id that is not in the list.
    """
    asked = {key: values[-1] for key, values in parse_qs(query.decode("latin-1")).items()}
    limit = _limit(asked.get("limit", str(DEFAULT_LIMIT)))
    ids = [card["id"] for card in cards]
    if "before_id" in asked:
        end = _position(ids, asked, "before_id")
        start = max(0, end - limit)
        has_more = start > 0
    else:
        start = _position(ids, asked, "after_id") + 1 if "after_id" in asked else 0
        end = start + limit
        has_more = end < len(cards)
    page = [model_info(card) for card in cards[start:end]]
    return {
        "data": page,
        "has_more": has_more,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _limit(text: str) -> int:
    # Longer digits are out of bounds too, and turning very many of them into a number is slow.
    if text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= MAX_LIMIT:
        return int(text)
    raise InvalidRequest(f"limit: expected a number from 1 to {MAX_LIMIT}", param="limit")


def _position(ids: list[str], asked: dict[str, str], field: str) -> int:
    if asked[field] not in ids:
        raise InvalidRequest(f"{field}: there is no model with this id", param=field)
    return ids.index(asked[field])
