"""A plan of changes as a table for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gateway.registry.units import format_size

if TYPE_CHECKING:
    from gateway.registry.diff import Field, ModelChange, Plan, What

_WORDS: dict[What, str] = {
    "added": "added",
    "removed": "removed",
    "restarted": "restarts",
    "changed": "changes live",
    "kept": "kept",
}
_ABSENT = "-"
_LONGEST = 60

_Row = tuple[str, str, str, str, str]


def lines(plan: Plan) -> list[str]:
    """One row for each key that differs, then a sentence for each thing to know."""
    if plan.empty:
        return ["no difference"]
    rows = [("NAME", "WHAT", "KEY", "OLD", "NEW"), *_rows(plan)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    table = [
        "  ".join([*(row[c].ljust(widths[c]) for c in range(4)), row[4]]).rstrip() for row in rows
    ]
    return table + list(_notes(plan))


def _rows(plan: Plan) -> Iterator[_Row]:
    for model in plan.models:
        if model.what != "kept":
            yield from _model_rows(model)
    if plan.old_budget_bytes != plan.new_budget_bytes:
        old, new = (
            _ABSENT if size is None else format_size(size)
            for size in (plan.old_budget_bytes, plan.new_budget_bytes)
        )
        yield ("(manager)", "changes live", "budget", old, new)
    for field in plan.manager:
        yield ("(manager)", "changes live", *_cells(field))
    for field in plan.server:
        live = field.reload == "live"
        yield ("(server)", "changes live" if live else "needs a restart", *_cells(field))


def _model_rows(model: ModelChange) -> Iterator[_Row]:
    what = _WORDS[model.what]
    if not model.fields:
        yield (model.name, what, f"variant of {model.of}" if model.of else "", "", "")
    for index, field in enumerate(model.fields):
        first = index == 0
        yield (model.name if first else "", what if first else "", *_cells(field))


def _cells(field: Field) -> tuple[str, str, str]:
    return field.key, shown(field.old), shown(field.new)


def shown(value: Any) -> str:
    """A value on one line, cut short; `-` for none."""
    if value is None:
        return _ABSENT
    if isinstance(value, float):
        return f"{value:.10g}"
    plain = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    text = value if plain else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _notes(plan: Plan) -> Iterator[str]:
    ending = [m for m in plan.models if m.what in ("removed", "restarted") and m.of is None]
    if ending:
        yield (
            "Models that restart or are removed finish their running calls first, "
            "for at most manager.drain_max_s."
        )
    if keys := plan.needs_service_restart:
        names = ", ".join(f"server.{key}" for key in keys)
        yield f"{names}: a reload does not apply this; restart the gateway."
    running = sum(model.runs_on for model in plan.models)
    if running:
        yield f"{running} {'entry is' if running == 1 else 'entries are'} not interrupted."
