"""`mlx-gateway model register`: one more entry in the registry, as text, after a look at it."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli import exits
from gateway.cli.client import CliError, guarded
from gateway.cli.screen import coloured, plain, say

if TYPE_CHECKING:
    from gateway.registry.add import Value
    from gateway.registry.load import Loaded

_COLOURS = {"+": "32", "-": "31", "@": "36"}


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "register",
        help="add a model to the registry",
        description="Adds an entry to the registry as text, so that comments and layout stay; it "
        "is checked as a reload would before it is written. A running gateway takes it over.",
    )
    parser.add_argument("name", help="what requests will call it")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--path", help="folder of the model")
    place.add_argument("--model", help="Hugging Face id in the local cache")
    parser.add_argument("--alias", action="append", default=[], help="another name; again for more")
    parser.add_argument("--kind", help="default: as its own config says")
    parser.add_argument("--description")
    parser.add_argument("--pin", action="store_true", help="never evicted to make room")
    parser.add_argument("--preload", action="store_true", help="loaded at start")
    parser.add_argument("--ttl", type=float, metavar="SECONDS", help="unloaded after so long idle")
    parser.add_argument("--config", metavar="FILE", help="the registry (default: as serve)")
    parser.add_argument("--dry-run", action="store_true", help="only show the change")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    """Raises `CliError`."""
    from gateway.registry.add import CannotAdd, added
    from gateway.registry.last_good import replace_file
    from gateway.registry.places import config_path, user_config

    asked = config_path(args.config, os.environ, folder=Path.cwd())
    path = asked or user_config(os.environ)
    old = _text(path)
    try:
        new = added(old, _entry(args))
    except CannotAdd as error:
        raise CliError(f"{path}: {error}") from error
    loaded = _check(path, old, new)
    _show(path, old, new)
    for problem in loaded.problems:
        say(plain(problem), to=sys.stderr)
    if args.dry_run:
        return exits.DONE
    if not args.yes and not _agreed():
        say("nothing was changed", to=sys.stderr)
        return exits.FAILED
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, new.encode())
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}") from error
    say(f"added {args.name} to {path}", to=sys.stderr)
    return exits.DONE


def _text(path: Path) -> str:
    """With its line ends as they are; nothing for a file that is not there."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {error}") from error


def _entry(args: argparse.Namespace) -> dict[str, Value]:
    from gateway.registry.add import entry_of

    place = {"path": args.path} if args.path else {"model": args.model}
    return entry_of(
        args.name,
        place,
        aliases=args.alias,
        kind=args.kind,
        description=args.description,
        pin=args.pin,
        preload=args.preload,
        ttl_s=args.ttl,
    )


def _check(path: Path, old: str, new: str) -> Loaded:
    """The registry as it would be. Raises `CliError` where it, or what is there now, is broken."""
    from gateway.registry.load import parse

    def checked(text: str, what: str) -> Loaded:
        loaded = parse(text.encode(), file=str(path), base=path.parent, environ=os.environ)
        if loaded.errors:
            raise CliError(f"{path} {what}: {'; '.join(map(str, loaded.errors))}")
        return loaded

    checked(old, "is broken already; mend it first")
    return checked(new, "would be broken")


def _show(path: Path, old: str, new: str) -> None:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), str(path), str(path), lineterm="", n=2
    )
    for line in lines:
        colour = _COLOURS.get(line[:1])
        say(coloured(plain(line), colour) if colour else plain(line))


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise CliError("nobody can be asked here; say --yes", exits.USAGE)
    return input("write this? [y/N] ").strip().lower() in ("y", "yes")
