"""`mlx-gateway doctor`: what keeps this machine from serving well, and what to do about it.

Exit codes: 0 nothing is wrong, maybe with warnings; 1 there are errors; 2 warnings, with --strict.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from gateway.cli import exits
from gateway.cli.client import CliError, Gateway, add_connection, address, guarded, key
from gateway.cli.screen import coloured, plain, say, say_json

if TYPE_CHECKING:
    from gateway.doctor.findings import Finding

ANSWER_S = 5.0
_COLOURS = {"error": "31", "warning": "33"}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("doctor", help="look for what is wrong with this machine")
    parser.add_argument("--config", metavar="FILE", help="the registry (default: as serve)")
    parser.add_argument("--strict", action="store_true", help="exit with 2 when there are warnings")
    add_connection(parser)
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    from gateway.doctor.findings import findings
    from gateway.doctor.surroundings import look

    url = _address(args.url)
    seen = look(args.config, os.environ, status=_status(url), url=url)
    found = findings(seen)
    if args.json:
        say_json([dataclasses.asdict(finding) for finding in found])
    else:
        _show(found)
    if any(finding.level == "error" for finding in found):
        return exits.FAILED
    return exits.USAGE if found and args.strict else exits.DONE


def _show(found: list[Finding]) -> None:
    for finding in found:
        say(f"{coloured(finding.level, _COLOURS[finding.level])}: {plain(finding.what)}")
        say(f"    why: {plain(finding.why)}")
        say(f"    do:  {plain(finding.todo)}")
    if not found:
        say("nothing is wrong")


def _address(flag: str | None) -> str | None:
    try:
        return address(flag, os.environ)
    except CliError:
        return None


def _status(url: str | None) -> dict[str, Any] | None:
    """What the gateway says of itself; that it asks for a key is an answer too."""
    if url is None:
        return None
    try:
        status: dict[str, Any] = Gateway(url, key(os.environ)).ask(
            "GET", "/v1/status", timeout_s=ANSWER_S
        )
    except CliError as error:
        return {} if error.code == exits.REFUSED else None
    return status
