"""What an answer has to hold: dotted paths into JSON, and what is there. Pure.

In a path a number is an index, and `*` stands for every element, as a list. What is there is a
plain value, or one of {ge: n}, {le: n}, {in: [...]}, {type: name}, {len: n}, {match: regex},
{has: value}, {set: [...]} (these, in any order, each once), {absent: true}, {json: value} (a string
that is JSON).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

Checks = dict[str, Any]

MISSING = object()

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": lambda value, bound: value >= bound,
    "le": lambda value, bound: value <= bound,
    "in": lambda value, choices: value in choices,
    "type": lambda value, name: type(value).__name__ == name,
    "len": lambda value, length: len(value) == length,
    "match": lambda value, pattern: re.search(pattern, value) is not None,
    "has": lambda value, member: member in value,
    "set": lambda value, members: sorted(value) == sorted(members),
    "json": lambda value, wanted: json.loads(value) == wanted,
}


def wrong(value: Any, checks: Checks) -> Iterator[str]:
    """What does not hold, in words."""
    for path, wanted in checks.items():
        found = at(value, path)
        if not _holds(found, wanted):
            shown = "(absent)" if found is MISSING else repr(found)
            yield f"{path} is {shown}, not {wanted!r}"


def at(value: Any, path: str) -> Any:
    """What is there, or `MISSING`."""
    first, _, rest = path.partition(".")
    if first == "*" and isinstance(value, list):
        return [at(item, rest) if rest else item for item in value]
    if isinstance(value, list) and first.lstrip("-").isdecimal():
        number = int(first)
        value = value[number] if -len(value) <= number < len(value) else MISSING
    elif isinstance(value, dict):
        value = value.get(first, MISSING)
    else:
        return MISSING
    return at(value, rest) if rest else value


def _holds(found: Any, wanted: Any) -> bool:
    match wanted:
        case {"absent": True}:
            return found is MISSING
        case dict() if len(wanted) == 1 and next(iter(wanted)) in _OPERATORS:
            ((operator, operand),) = wanted.items()
            return found is not MISSING and _OPERATORS[operator](found, operand)
        case _:
            return bool(found == wanted)
