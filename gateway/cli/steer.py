"""`mlx-gateway load`, `unload`, `pin`, `unpin` and `reload`: a running gateway, steered."""

from __future__ import annotations

import argparse
import json
import re
import threading
from typing import Any
from urllib.parse import quote

from gateway.cli import exits
from gateway.cli.client import LOAD_S, CliError, Gateway, add_connection, connect, guarded
from gateway.cli.screen import Bar, plain, say, say_json

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    load = verbs.add_parser("load", help="bring a model into memory, and wait until it can serve")
    load.add_argument("--no-wait", action="store_true", help="only ask for it")
    unload = verbs.add_parser("unload", help="give a model's memory back; running requests may end")
    pin = verbs.add_parser("pin", help="keep a model once it is loaded")
    pin.add_argument(
        "--for", dest="duration", metavar="TIME", help="30s, 20m, 2h, 1d; else for good"
    )
    unpin = verbs.add_parser("unpin", help="end what pin began")
    for parser, run in ((load, run_load), (unload, run_unload), (pin, run_pin), (unpin, run_unpin)):
        parser.add_argument("model")
        add_connection(parser)
        parser.set_defaults(run=guarded(run))
    reload = verbs.add_parser("reload", help="read the registry again, and say what changed")
    add_connection(reload)
    reload.set_defaults(run=guarded(run_reload))


def run_load(args: argparse.Namespace) -> int:
    gateway = connect(args)
    if args.no_wait:
        return _tell(args, gateway.ask("POST", _path(args.model, "load")))
    with _Progress(gateway, args.model):
        answer = gateway.ask("POST", _path(args.model, "load?wait=true"), timeout_s=LOAD_S)
    return _tell(args, answer)


def run_unload(args: argparse.Namespace) -> int:
    return _tell(args, connect(args).ask("POST", _path(args.model, "unload")))


def run_pin(args: argparse.Namespace) -> int:
    body = None if args.duration is None else {"expires_in_s": duration_s(args.duration)}
    return _tell(args, connect(args).ask("PUT", _path(args.model, "pin"), body))


def run_unpin(args: argparse.Namespace) -> int:
    return _tell(args, connect(args).ask("DELETE", _path(args.model, "pin")))


def run_reload(args: argparse.Namespace) -> int:
    outcome = connect(args).ask("POST", "/admin/reload", timeout_s=120)
    if args.json:
        say_json(outcome)
        return exits.DONE
    say(plain(outcome["result"]))
    for problem in outcome["problems"]:
        say(plain(f"{problem['level']}: {problem['key']}: {problem['message']}"))
    return exits.DONE


def duration_s(text: str) -> float:
    """`90`, `30s`, `20m`, `2h` or `1d` in seconds. Raises `CliError`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise CliError(f"{text!r} is no time; write 30s, 20m, 2h or 1d", exits.USAGE)
    return float(found[1]) * _UNITS[found[2]]


def _path(model: str, rest: str) -> str:
    return f"/v1/models/{quote(model, safe='')}/{rest}"


def _tell(args: argparse.Namespace, view: dict[str, Any]) -> int:
    if args.json:
        say_json(view)
    else:
        pinned = ", pinned" if view["pinned"] else ""
        reason = f": {view['reason']}" if view["reason"] else ""
        say(plain(f"{view['model']} is {view['state']}{pinned}{reason}"))
    return exits.DONE


class _Progress:
    """A load's progress, from the model's events, while another request waits for its end."""

    def __init__(self, gateway: Gateway, model: str) -> None:
        self._gateway = gateway
        self._model = model
        self._bar = Bar(f"load {plain(model)}")
        self._over = threading.Event()
        # It ends with the process at the latest: nothing waits for a stream without events.
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._bar.end()

    def _follow(self) -> None:
        try:
            for data in self._gateway.events("GET", _path(self._model, "events")):
                event = json.loads(data)
                if self._over.is_set():
                    return
                if event.get("type") == "load_progress":
                    self._bar.show(event["done_bytes"], event["total_bytes"], event["stage"])
        except CliError:
            return  # the load itself tells what is wrong
