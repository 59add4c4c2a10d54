"""`mlx-gateway service ...`: the gateway as a service of launchd or systemd.

Exit codes: 0 done, 1 it could not be done, 3 (`status` alone) not running.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.service.description import Service
    from gateway.service.manager import Manager

EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3
LOG_LINES = 50

_VERBS = {
    "install": "install and start it; again after an update or a change of drain_s",
    "uninstall": "stop and remove it; registry, state and logs stay",
    "start": "start it",
    "stop": "stop it until the next login",
    "restart": "stop it and start it",
    "status": "whether it is installed and running",
    "logs": "the last lines of its log",
}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "service",
        help="run the gateway as a service of this machine",
        description="Runs the gateway as a service: launchd on a Mac, systemd on Linux.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    for name, text in _VERBS.items():
        action = actions.add_parser(name, help=text)
        action.add_argument(
            "--system", action="store_true", help="for the whole machine; needs root"
        )
        if name == "install":
            action.add_argument("--config", metavar="FILE", help="the registry to serve")
        if name in ("install", "uninstall"):
            action.add_argument("--dry-run", action="store_true", help="only say what it would do")
        if name == "status":
            action.add_argument("--json", action="store_true", help="print one JSON object")
        if name == "logs":
            action.add_argument("-n", "--lines", type=int, default=LOG_LINES, metavar="N")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gateway.service.manager import Manager, this_system
    from gateway.service.steps import ServiceError

    manager = Manager(this_system(os.environ, system=args.system), _say)
    try:
        return _act(args, manager)
    except ServiceError as error:
        print(f"mlx-gateway service: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED


def _act(args: argparse.Namespace, manager: Manager) -> int:
    match args.action:
        case "install":
            service = installed_by(args.config)
            manager.install(service, dry_run=args.dry_run)
        case "uninstall":
            manager.uninstall(dry_run=args.dry_run)
        case "start":
            manager.start()
        case "stop":
            manager.stop()
        case "restart":
            manager.restart()
        case "status":
            return _status(manager, as_json=args.json)
        case _:
            return _logs(args.lines)
    return 0


def installed_by(config: str | None) -> Service:
    """What `service install` would describe. Raises `ServiceError` without a registry to serve."""
    from gateway.registry.load import load
    from gateway.registry.places import config_path, places, user_config
    from gateway.registry.schema import Server
    from gateway.service.description import describe
    from gateway.service.steps import ServiceError

    path = config_path(config, os.environ, folder=Path.cwd())
    if path is None or not path.exists():
        raise ServiceError(
            f"there is no registry to serve at {path or user_config(os.environ)}; write one, or "
            "name another with --config"
        )
    loaded = load(path, environ=os.environ)
    # A registry that is broken now may be mended by the time that the service starts.
    server = Server() if loaded.registry is None else loaded.registry.server
    where = places(os.environ)
    return describe(path, where, os.environ, drain_s=server.drain_s)


def _status(manager: Manager, *, as_json: bool) -> int:
    import msgspec

    status = manager.status()
    if as_json:
        body = {"installed": status.file, "loaded": status.loaded, "pid": status.pid}
        _say(msgspec.json.encode(body | {"last_exit": status.last_exit}).decode())
    elif not status.file:
        _say("not installed")
    elif status.pid is None:
        ended = "" if status.last_exit is None else f"; it ended with {status.last_exit}"
        _say(f"installed, not running{ended}")
    else:
        _say(f"running, pid {status.pid}")
    return 0 if status.pid is not None else EXIT_NOT_RUNNING


def _logs(lines: int) -> int:
    from gateway.registry.places import places
    from gateway.service.description import LOG
    from gateway.service.steps import ServiceError

    path = places(os.environ).logs / LOG
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            sys.stdout.writelines(deque(file, maxlen=max(lines, 1)))
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror or error}") from error
    return 0


def _say(text: str) -> None:
    print(text)  # noqa: T201
