"""Reading the parameters of a query string."""

from __future__ import annotations

from urllib.parse import parse_qs

from gateway.errors import InvalidRequest
from gateway.server import Scope

Query = dict[str, str]


def query_of(scope: Scope) -> Query:
    """The first value of each parameter. Raises `InvalidRequest` when there are very many."""
    try:
        pairs = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=100)
    except ValueError:
        raise InvalidRequest("the address has too many parameters") from None
    return {key: values[0] for key, values in pairs.items()}


def flag(query: Query, name: str) -> bool:
    """True or false, false when absent. Raises `InvalidRequest`."""
    value = query.get(name, "false").lower()
    if value not in ("true", "1", "false", "0"):
        raise InvalidRequest(f"{name}: true or false, not {value[:50]!r}", param=name)
    return value in ("true", "1")


def number(query: Query, name: str, default: int, least: int, most: int) -> int:
    """A whole number within bounds. Raises `InvalidRequest`."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidRequest(f"{name}: a number, not {text[:50]!r}", param=name)
    value = int(text)
    if not least <= value <= most:
        raise InvalidRequest(f"{name}: from {least} to {most}", param=name)
    return value
