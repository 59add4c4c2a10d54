"""`mlx-gateway check`: everything that is wrong with a registry, by the code that serves it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.registry.load import Loaded, Model

EXIT_FINE, EXIT_ERRORS, EXIT_WARNINGS = 0, 1, 2


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "check",
        help="say everything that is wrong with a registry file",
        description="Checks a registry file with the code that serves it. Exit code 0: it can be "
        "served, maybe with warnings; 1: there are errors; 2: warnings, with --strict.",
    )
    parser.add_argument("file", nargs="?", help="the registry (default: the one serve would take)")
    parser.add_argument("--strict", action="store_true", help="exit with 2 when there are warnings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints problems, then models and budget; returns the exit code."""
    from gateway.registry.load import load
    from gateway.registry.places import config_path
    from gateway.supervisor.probe import system_memory

    path = config_path(args.file, os.environ, folder=Path())
    if path is None:
        sys.stderr.write(
            "no registry: name a file, set MLX_GATEWAY_CONFIG, or write ./registry.yaml\n"
        )
        return EXIT_ERRORS
    loaded = load(path, environ=os.environ, machine=system_memory())
    sys.stdout.write(as_json(loaded) if args.json else as_text(loaded))
    if loaded.errors:
        return EXIT_ERRORS
    return EXIT_WARNINGS if args.strict and loaded.problems else EXIT_FINE


def as_text(loaded: Loaded) -> str:
    """Problems one a line, then, if the file can be served, a table and the budget."""
    lines = [str(problem) for problem in loaded.problems]
    if loaded.registry is None:
        errors = len(loaded.errors)
        lines.append(f"{errors} error{'s' if errors > 1 else ''}; the file cannot be served")
        return "\n".join(lines) + "\n"
    if loaded.models:
        lines += _table([("NAME", "KIND", "NEEDS", "STATE"), *_rows(loaded)])
    lines.append(_budget(loaded))
    return "\n".join(lines) + "\n"


def _rows(loaded: Loaded) -> list[tuple[str, str, str, str]]:
    from gateway.registry.units import format_size

    rows: list[tuple[str, str, str, str]] = []
    for model in loaded.models:
        needs = _needs_bytes(loaded, model)
        state = f"variant of {model.entry.of}" if model.entry.of else "available"
        if model.unavailable:
            state = "unavailable"
        size = "?" if needs is None else format_size(needs)
        rows.append((model.entry.name, model.entry.kind or "", size, state))
    return rows


def _needs_bytes(loaded: Loaded, model: Model) -> int | None:
    """What a model is charged; None while its size or the budget is not known."""
    from gateway.registry.limits import limits

    known = model.size is not None or model.entry.estimated_memory_gb is not None
    if loaded.budget_bytes is None or not known:
        return None
    return limits(model, loaded.budget_bytes).charge_bytes


def _table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        "  ".join([row[c].ljust(widths[c]) for c in range(3)] + [row[3]]).rstrip() for row in rows
    ]


def _budget(loaded: Loaded) -> str:
    from gateway.registry.units import format_size

    if loaded.budget_bytes is None:
        return "memory budget: auto"
    text = f"memory budget: {format_size(loaded.budget_bytes)} ({loaded.budget_bytes} bytes)"
    if loaded.configured_budget_bytes not in (None, loaded.budget_bytes):
        text += f", clamped from {format_size(loaded.configured_budget_bytes or 0)}"
    return text


def as_json(loaded: Loaded) -> str:
    """`{"ok", "problems", "models", "budget_bytes"}` for programs."""
    import msgspec

    report = {
        "ok": loaded.registry is not None,
        "problems": loaded.problems,
        "models": [
            {
                "name": model.entry.name,
                "kind": model.entry.kind,
                "of": model.entry.of,
                "path": None if model.path is None else str(model.path),
                "charge_bytes": _needs_bytes(loaded, model),
                "weights_bytes": None if model.size is None else model.size.weights_bytes,
                "unavailable": model.unavailable,
            }
            for model in loaded.models
        ],
        "configured_budget_bytes": loaded.configured_budget_bytes,
        "budget_bytes": loaded.budget_bytes,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
