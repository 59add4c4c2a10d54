"""`mlx-gateway model inspect`: what a model is, and whether this machine could serve it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli import exits
from gateway.cli.client import CliError, guarded
from gateway.cli.screen import coloured, plain, say

if TYPE_CHECKING:
    from gateway.modeltools.findings import Machine, Report
    from gateway.modeltools.listing import Listing


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "inspect",
        help="say what a model is and whether it fits",
        description="Looks at a folder, or at a Hugging Face id: first in what is on this "
        "machine, then at the hub. No weights are read or downloaded. Exit code 1: it cannot be "
        "served here.",
    )
    parser.add_argument("model", metavar="PATH|ID", help="folder, or Hugging Face id")
    parser.add_argument("--revision", help="branch, tag or commit of an id")
    parser.add_argument("--local-files-only", action="store_true", help="never ask the hub")
    parser.add_argument("--config", metavar="FILE", help="the registry with the budget")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    """Raises `CliError`."""
    import msgspec

    from gateway.modeltools.findings import report

    found = report(_listing(args), _machine(args.config))
    if args.json:
        say(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show(found)
    return exits.DONE if found.fits else exits.FAILED


def _listing(args: argparse.Namespace) -> Listing:
    from engines import wire
    from gateway.cli.model_task import do
    from gateway.modeltools.listing import of_folder, of_hub
    from gateway.modeltools.local import find_local, looks_like_id
    from gateway.registry.find import NotFound

    try:
        return of_folder(find_local(args.model, args.revision, os.environ))
    except OSError as error:
        raise CliError(f"{args.model} cannot be read: {error.strerror or error}") from error
    except NotFound as error:
        if args.local_files_only or not looks_like_id(args.model):
            raise CliError(str(error), exits.NOT_FOUND) from error
    return of_hub(do(wire.LookUp(args.model, args.revision)))


def _machine(config: str | None) -> Machine:
    """With the budget of the registry that serve would take, else of one without settings."""
    from gateway.modeltools.findings import Machine
    from gateway.registry.load import load
    from gateway.registry.places import config_path
    from gateway.registry.schema import Manager
    from gateway.registry.units import budget_bytes
    from gateway.supervisor.probe import system_memory

    machine = system_memory()
    budget, _ = budget_bytes(Manager(), machine.total_bytes, machine.ceiling_bytes)
    if (path := config_path(config, os.environ, folder=Path.cwd())) is not None:
        loaded = load(path, environ=os.environ, machine=machine)
        if loaded.budget_bytes is None:
            say(f"{path} is broken, so its budget does not count here", to=sys.stderr)
        budget = loaded.budget_bytes or budget
    return Machine(budget, gpu=sys.platform == "darwin" or Path("/dev/nvidia0").exists())


def _show(found: Report) -> None:
    from gateway.registry.units import format_size

    parts = [("model", found.place), ("format", found.format), ("kind", found.kind)]
    parts += [
        ("architecture", found.architecture),
        ("quantisation", found.quantisation or "none"),
        ("types", ", ".join(sorted(found.types, key=lambda name: -found.types[name]))),
        ("files", f"{found.files}, {format_size(found.file_bytes)}"),
        ("weights", format_size(found.weights_bytes) if found.weights_bytes else None),
        ("context", f"{found.context_length} tokens" if found.context_length else None),
        ("KV", f"{found.kv_bytes_per_token} bytes/token" if found.kv_bytes_per_token else None),
        ("needs", _needs(found)),
        ("from", _origin(found)),
    ]
    for name, value in parts:
        if value:
            say(f"{name:<14}{plain(value)}")
    for warning in found.warnings:
        say(coloured("warning: ", "33") + plain(warning))


def _needs(found: Report) -> str | None:
    from gateway.registry.units import format_size

    if found.needs_bytes is None:
        return None
    budget = f"the budget of {format_size(found.budget_bytes)}"
    return f"{format_size(found.needs_bytes)}, {'within' if found.fits else 'more than'} {budget}"


def _origin(found: Report) -> str | None:
    origin = found.origin
    source = origin.get("source")
    repo = origin.get("repo") or (source.get("repo") if isinstance(source, dict) else None)
    if repo is None:
        return None
    commit = origin.get("commit") or (source or {}).get("commit")
    return f"{repo} at {commit}" + (", converted" if source else "")
