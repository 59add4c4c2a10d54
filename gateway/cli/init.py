"""`mlx-gateway init`: a first registry, with the models of this machine that fit."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

EXIT_FAILED = 1


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "init",
        help="write a first registry with the models of this machine",
        description="Writes a registry with the models in the local Hugging Face cache, and in the "
        "folders named, that fit in memory.",
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="with MLX models")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: where serve looks for it")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--stdout", action="store_true", help="only print it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gateway.registry.places import user_config
    from gateway.registry.schema import Manager
    from gateway.registry.starter import local_models, starter
    from gateway.registry.units import budget_bytes
    from gateway.supervisor.probe import system_memory

    machine = system_memory()
    budget, _ = budget_bytes(Manager(), machine.total_bytes, machine.ceiling_bytes)
    candidates = local_models(args.folders, os.environ, budget)
    text = starter(candidates, budget)
    if args.stdout:
        sys.stdout.write(text)
        return 0
    path = Path(args.output) if args.output else user_config(os.environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return _complain(f"{path} is there already; --force replaces it")
    except OSError as error:
        return _complain(f"{path} cannot be written: {error.strerror or error}")
    fitting = sum(candidate.needs_bytes <= budget for candidate in candidates)
    left = len(candidates) - fitting
    said = f"wrote {path} with {fitting} model{'' if fitting == 1 else 's'}"
    print(said + (f"; {left} more do not fit in memory" if left else ""))  # noqa: T201
    print("next: mlx-gateway serve" + (f" --config {path}" if args.output else ""))  # noqa: T201
    return 0


def _complain(message: str) -> int:
    sys.stderr.write(f"mlx-gateway: {message}\n")
    return EXIT_FAILED
