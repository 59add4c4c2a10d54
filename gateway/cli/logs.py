"""`mlx-gateway logs`: what a running gateway and its engines say."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import urlencode

from gateway.cli import exits
from gateway.cli.client import add_connection, connect, guarded
from gateway.cli.screen import coloured, plain, say

_COLOURS = {"ERROR": "31", "WARNING": "33", "DEBUG": "2"}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("logs", help="what the gateway and its engines say")
    parser.add_argument("model", nargs="?", help="only about this model")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it is said")
    parser.add_argument("-n", "--lines", type=int, default=100, metavar="N")
    parser.add_argument("--level", help="debug, info, warning or error; and what is above")
    add_connection(parser)
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    gateway = connect(args)
    query = {"lines": args.lines, "model": args.model, "level": args.level}
    asked = urlencode({name: value for name, value in query.items() if value is not None})
    if not args.follow:
        for line in gateway.get(f"/admin/logs?{asked}")["lines"]:
            _show(line, as_json=args.json)
        return exits.DONE
    for data in gateway.events("GET", f"/admin/logs?{asked}&follow=1"):
        _show(json.loads(data), as_json=args.json)
    return exits.DONE


def _show(line: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(line, ensure_ascii=False))
        return
    import datetime

    level = plain(line.get("level", ""))
    at = datetime.datetime.fromtimestamp(line["at"]).strftime("%H:%M:%S.%f")[:-3]
    source = plain(line.get("model") or line.get("source") or "")
    text = f"{at} {level:7} {source}: {plain(line.get('line', ''))}"
    say(coloured(text, _COLOURS[level]) if level in _COLOURS else text)
