"""`mlx-gateway bench serve`: measures a running server, this gateway or any other.

Exit codes: 0 measured and every check passed, 1 a check or a request failed, 2 the arguments or
files are wrong, 3 nothing answers.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.bench.client import Client
    from gateway.bench.contract import CaseResult
    from gateway.bench.report import Provenance
    from gateway.bench.sweep import Plan, Point
    from gateway.bench.workload import Workload

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3
MAX_SYSTEM_BYTES = 2**20


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("bench", help="measure a running server")
    targets = parser.add_subparsers(required=True, metavar="WHAT")
    serve = targets.add_parser(
        "serve",
        help="time to first token, rates and gaps over HTTP; or a workload with checks",
        description="Without --workload it sends prompts of several lengths at several "
        "concurrencies. With it, it runs the cases of the file and checks their answers.",
    )
    add = serve.add_argument
    add("--url", help="the server (default: MLX_GATEWAY_URL, then the one that runs here)")
    add("--model", help="default: the only one, or the first that is loaded")
    add("--prompts", default="short,medium,long", help="short, medium, long, or text files")
    add("--workload", metavar="FILE", help="cases with checks, as JSON")
    add("--concurrency", default="1,4", help="streams at a time")
    add("--max-tokens", type=int, default=256, help="of each answer of a sweep")
    add("--repetitions", type=int, default=3, help="requests for each stream, or for each case")
    add("--enable-thinking", help="true, false, or true,false for both")
    add("--system-prompt-file", metavar="FILE", help="in front of every prompt of a sweep")
    add("--seed", type=int, default=0, help="another seed gives other prompts")
    add("--scrape-metrics", choices=("true", "false"), default="true", help="/metrics around runs")
    add("--include-content", action="store_true", help="put answers into the JSON")
    add("--request-timeout-s", type=float, default=300, help="silence of one request; 0: any")
    add("--cache-policy", choices=("preserve", "before-run", "before-case"))
    add("--format", choices=("auto", "table", "json", "csv", "sql", "sqlite"), default="auto")
    add("--output", metavar="FILE", help="default: standard output; sqlite needs a file")
    add("--tag", default="", help="a word of your own in every row")
    serve.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from gateway.bench.client import Unreachable
    from gateway.bench.prompts import BadPrompts
    from gateway.bench.workload import BadWorkload

    if args.format == "sqlite" and not args.output:
        return _complain("--format sqlite needs --output FILE", EXIT_USAGE)
    try:
        found = _Found(args, _workload(args), _plan(args))
        try:
            asyncio.run(found.measure())
        except KeyboardInterrupt:
            _say("interrupted; this is what there is")
        found.write()
        return EXIT_FAILED if found.failed else 0
    except (BadWorkload, BadPrompts, ValueError, OSError) as error:
        return _complain(str(error), EXIT_USAGE)
    except Unreachable as error:
        return _complain(str(error), EXIT_UNREACHABLE)


def _workload(args: argparse.Namespace) -> Workload | None:
    from gateway.bench.workload import load

    return load(Path(args.workload)) if args.workload else None


def _plan(args: argparse.Namespace) -> Plan:
    from gateway.bench.sweep import Plan

    system = None
    if args.system_prompt_file:
        with Path(args.system_prompt_file).open(encoding="utf-8") as file:
            system = file.read(MAX_SYSTEM_BYTES)
    return Plan(
        model=args.model or "",
        prompts=tuple(filter(None, args.prompts.split(","))),
        concurrency=_numbers(args.concurrency),
        thinking=_thinking(args.enable_thinking),
        repetitions=max(1, args.repetitions),
        max_tokens=max(1, args.max_tokens),
        seed=args.seed,
        system=system,
        metrics=args.scrape_metrics == "true",
    )


class _Found:
    """What was measured so far; an interrupted run writes what there is."""

    def __init__(self, args: argparse.Namespace, workload: Workload | None, plan: Plan) -> None:
        self._args = args
        self._workload = workload
        self._plan = plan
        self._url = _url(args.url)
        self._version: str | None = None
        self._points: list[Point] = []
        self._results: list[CaseResult] = []

    @property
    def failed(self) -> bool:
        return any(point.summary.failed for point in self._points) or any(
            result.failures for result in self._results
        )

    async def measure(self) -> None:
        """Raises `Unreachable`, and `ValueError` for a server without a model to ask."""
        from gateway.bench import contract
        from gateway.bench.client import Client
        from gateway.bench.sweep import sweep

        key = os.environ.get("MLX_GATEWAY_KEY")
        async with Client(self._url, key, self._args.request_timeout_s) as client:
            self._version = await _version(client)
            model = self._plan.model or await _only_model(client)
            self._plan = dataclasses.replace(self._plan, model=model)
            if self._workload is None:
                await sweep(client, self._plan, _say, self._points)
                return
            plan, policy = self._plan, self._args.cache_policy
            how = contract.Run(model, plan.repetitions, policy, plan.metrics)
            await contract.run(client, self._workload, how, _say, self._results)

    def write(self) -> None:
        """Raises `OSError`, and `ValueError` for a database that is none."""
        import sqlite3

        from gateway.bench import report

        args, source = self._args, self._source()
        name = "" if self._workload is None else self._workload.name
        rows = report.sweep_rows(source, self._points)
        rows += report.workload_rows(source, name, self._results)
        chosen = args.format
        if chosen == "auto":
            chosen = "table" if self._workload is None else "json"
        if chosen == "sqlite":
            try:
                report.into_sqlite(Path(args.output), rows)
            except sqlite3.Error as error:
                raise ValueError(f"{args.output}: {error}") from error
            return
        if chosen == "json":
            text = report.as_json(source, self._points, name, self._results)
            text = text if args.include_content else report.without_texts(text)
        else:
            text = {"table": report.table, "csv": report.as_csv, "sql": report.as_sql}[chosen](rows)
        if args.output:
            Path(args.output).write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)

    def _source(self) -> Provenance:
        import datetime
        import platform

        from gateway import __version__
        from gateway.bench.report import Provenance

        samples = [sample for point in self._points for sample in point.samples]
        samples += [verdict.sample for result in self._results for verdict in result.verdicts]
        return Provenance(
            at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            url=self._url,
            model=self._plan.model,
            fingerprint=next((s.fingerprint for s in samples if s.fingerprint), None),
            server_version=self._version,
            client_version=__version__,
            host=f"{platform.system()} {platform.machine()} {platform.release()}",
            arguments=tuple(sys.argv[1:]),
            tag=self._args.tag,
        )


async def _version(client: Client) -> str | None:
    """Of a gateway of ours that lets us see it; None of any other server."""
    import msgspec

    status, body = await client.get("/v1/status")
    try:
        return str(msgspec.json.decode(body)["version"]) if status == 200 else None
    except (msgspec.DecodeError, KeyError, TypeError):
        return None


async def _only_model(client: Client) -> str:
    """The first loaded model, else the first of all. Raises `ValueError` without one."""
    import msgspec

    status, body = await client.get("/v1/models")
    if status != 200:
        raise ValueError(f"/v1/models answers {status}; set MLX_GATEWAY_KEY, or name a --model")
    try:
        models = msgspec.json.decode(body).get("data") or []
    except (msgspec.DecodeError, AttributeError) as error:
        raise ValueError("/v1/models lists no models; name a --model") from error
    loaded = [m for m in models if (m.get("status") or {}).get("value") == "loaded"]
    if not models:
        raise ValueError("the server has no models")
    return str((loaded or models)[0]["id"])


def _url(flag: str | None) -> str:
    """The flag, the variable, or where the gateway of this machine says it listens."""
    from gateway.registry.places import places

    if given := flag or os.environ.get("MLX_GATEWAY_URL"):
        return given
    try:
        return places(os.environ).address.read_text(encoding="utf-8").strip()
    except OSError:
        raise ValueError("no gateway runs here; name a server with --url") from None


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(",") if part.strip())
    if not numbers or min(numbers) < 1:
        raise ValueError(f"--concurrency {text!r}: whole numbers from 1, separated by commas")
    return numbers


def _thinking(text: str | None) -> tuple[bool | None, ...]:
    if text is None:
        return (None,)
    words = [word.strip().lower() for word in text.split(",")]
    if not set(words) <= {"true", "false"}:
        raise ValueError(f"--enable-thinking {text!r}: true, false, or both")
    return tuple(word == "true" for word in words)


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


def _complain(text: str, code: int) -> int:
    print(f"mlx-gateway bench: {text}", file=sys.stderr)  # noqa: T201
    return code
