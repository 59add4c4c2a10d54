"""`mlx-gateway model qualify`: runs a workload against a served model, and keeps the evidence.

Exit codes: 0 every check passed, 1 one failed, 2 the workload is wrong, others as of every verb.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.cli import exits
from gateway.cli.client import CliError, Gateway, add_connection, address, guarded, key
from gateway.cli.screen import plain, say, say_json

if TYPE_CHECKING:
    from gateway.bench.contract import CaseResult
    from gateway.bench.report import Provenance
    from gateway.bench.workload import Workload


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "qualify",
        help="check a served model with a workload",
        description="Runs the cases of a workload file, as `bench serve --workload` takes it, "
        "checks the answers and writes what came of it, with what was asked, into a file.",
    )
    parser.add_argument("name", help="the model, as requests call it")
    parser.add_argument("--workload", required=True, metavar="FILE", help="cases with checks")
    parser.add_argument("--repetitions", type=int, default=1, metavar="N", help="of each case")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="silence of one request")
    parser.add_argument("--output", metavar="FILE", help="default: in the state directory")
    add_connection(parser)
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    """Raises `CliError`."""
    from gateway.modeltools.evidence import evidence, file_name, passed, write
    from gateway.registry.places import places

    workload, digest = _workload(Path(args.workload))
    url, api_key = address(args.url, os.environ), key(os.environ)
    status, version = _status(Gateway(url, api_key), args.name)
    results: list[CaseResult] = []
    stopped = not _measure(args, (url, api_key), workload, results)
    source = _source(args, url, version, results)
    cases = len(workload.cases)
    document = evidence(source, (workload.name, digest), status, results, complete=cases)
    default = places(os.environ).state / "evidence" / file_name(args.name, source.at)
    path = Path(args.output or default)
    try:
        write(path, document)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}") from error
    _show(args, document, source, workload.name, results)
    say(plain(f"evidence: {path}"), to=sys.stderr)
    if stopped:
        return exits.INTERRUPTED
    return exits.DONE if passed(results, cases) else exits.FAILED


def _workload(path: Path) -> tuple[Workload, str]:
    from gateway.bench.workload import BadWorkload, load

    try:
        return load(path), hashlib.sha256(path.read_bytes()).hexdigest()
    except (BadWorkload, OSError) as error:
        raise CliError(f"{path}: {error}", exits.USAGE) from error


def _status(gateway: Gateway, name: str) -> tuple[dict[str, Any], str | None]:
    """What the gateway says of the model, by name or alias, and its version. Raises `CliError`."""
    from urllib.parse import quote

    asked = gateway.get(f"/v1/models/{quote(name, safe='')}")
    status = gateway.get("/v1/status")
    found = [model for model in status["models"] if model["name"] == asked.get("id", name)]
    return (found[0] if found else {"name": name}), status.get("version")


def _measure(
    args: argparse.Namespace,
    where: tuple[str, str | None],
    workload: Workload,
    results: list[CaseResult],
) -> bool:
    """Whether it came to its end. Raises `CliError`."""
    from gateway.bench import contract
    from gateway.bench.client import Client, Unreachable

    how = contract.Run(args.name, max(1, args.repetitions))

    async def measured() -> None:
        async with Client(*where, args.timeout_s) as client:
            await contract.run(client, workload, how, _told, results)

    try:
        asyncio.run(measured())
    except Unreachable as error:
        raise CliError(str(error), exits.UNREACHABLE) from error
    except KeyboardInterrupt:
        say("interrupted; the evidence is of what was run", to=sys.stderr)
        return False
    return True


def _told(text: str) -> None:
    say(plain(text), to=sys.stderr)


def _source(
    args: argparse.Namespace, url: str, version: str | None, results: list[CaseResult]
) -> Provenance:
    from gateway.bench.report import Provenance

    samples = [verdict.sample for result in results for verdict in result.verdicts]
    return Provenance(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        url=url,
        model=args.name,
        fingerprint=next((s.fingerprint for s in samples if s.fingerprint), None),
        server_version=version,
        client_version=__version__,
        host=f"{platform.system()} {platform.machine()} {platform.release()}",
        arguments=tuple(sys.argv[1:]),
    )


def _show(
    args: argparse.Namespace,
    document: dict[str, Any],
    source: Provenance,
    workload: str,
    results: list[CaseResult],
) -> None:
    from gateway.bench.report import table, workload_rows

    if args.json:
        say_json(document)
        return
    say(plain(table(workload_rows(source, workload, results)).rstrip("\n")))
    say(f"{args.name}: {'passed' if document['passed'] else 'failed'}")
