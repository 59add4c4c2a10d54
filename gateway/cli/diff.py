"""`mlx-gateway diff`: what a reload would do, before it is done.

Exit codes: 0 the files come to the same, 1 there are errors in one of them, 3 they differ
(2 is a mistake on the command line).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.registry.diff import Plan
    from gateway.registry.problems import Problem

EXIT_SAME, EXIT_ERRORS, EXIT_DIFFERENT = 0, 1, 3


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "diff",
        help="say what changes if one registry file replaces another",
        description="Compares two registry files by what they mean: which models a reload would "
        "add, remove, restart or change while they run. Exit code 0: no difference; 1: errors in "
        "one of the files; 3: they differ.",
    )
    parser.add_argument("old", metavar="OLD", help="the registry that is served")
    parser.add_argument("new", metavar="NEW", help="the one to take its place")
    parser.add_argument(
        "--base",
        metavar="FOLDER",
        type=Path,
        help="relative paths in both files count from here (default: each file's own folder)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the problems, then the plan; returns the exit code."""
    from gateway.registry.diff import compare
    from gateway.registry.load import load
    from gateway.supervisor.probe import system_memory

    machine = system_memory()
    old, new = (
        load(Path(name), environ=os.environ, machine=machine, base=args.base)
        for name in (args.old, args.new)
    )
    # Warnings about the old file are no news to whoever replaces it.
    problems = (*old.errors, *new.problems)
    failed = bool(old.errors or new.errors)
    plan = None if failed else compare(old, new)
    sys.stdout.write(as_json(problems, plan) if args.json else as_text(problems, plan))
    if plan is None:
        return EXIT_ERRORS
    return EXIT_SAME if plan.empty else EXIT_DIFFERENT


def as_text(problems: tuple[Problem, ...], plan: Plan | None) -> str:
    lines = [str(problem) for problem in problems]
    if plan is None:
        errors = sum(problem.level == "error" for problem in problems)
        lines.append(f"{errors} error{'s' if errors > 1 else ''}; nothing was compared")
    else:
        lines += plan.lines()
    return "\n".join(lines) + "\n"


def as_json(problems: tuple[Problem, ...], plan: Plan | None) -> str:
    """`{"ok", "problems", "plan"}` for programs; `plan` is null when there are errors."""
    import msgspec

    report = {
        "ok": plan is not None,
        "problems": problems,
        "plan": None if plan is None else plan.to_builtins(),
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
