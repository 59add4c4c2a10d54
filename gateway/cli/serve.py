"""`mlx-gateway serve`: from a registry file to a running gateway.

Exit codes: 0 asked to stop, 70 a bug, 75 the address or the state directory is taken,
78 a broken registry (as in sysexits.h).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.daemon import Plan
    from gateway.registry.load import Loaded
    from gateway.registry.places import Places
    from gateway.registry.problems import Problem
    from gateway.reload import Read
    from gateway.served import Served
    from gateway.supervisor.probe import SystemMemory

log = logging.getLogger("gateway")

EXIT_BUG = 70
EXIT_TAKEN = 75
EXIT_CONFIG = 78

NO_REGISTRY = """\
No registry found, so there are no models yet. Write one, for example as {user}:

  models:
    - name: my-model
      path: /path/to/an/mlx/model

then start again; `mlx-gateway check FILE` tells what is wrong with a file."""


def add_parser(verbs: Any) -> None:
    parser: argparse.ArgumentParser = verbs.add_parser(
        "serve", help="serve the models of a registry"
    )
    parser.add_argument("--config", metavar="FILE", help="the registry (default: registry.yaml)")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", help="port to listen on; 0 takes a free one (default: 8000)")
    parser.add_argument("--log-file", metavar="FILE", help="log to this file instead of stderr")
    parser.add_argument("--log-level", help="debug, info, warning or error (default: info)")
    parser.add_argument(
        "--allow-insecure",
        action="store_const",
        const="true",
        help="serve other machines without keys, with every right",
    )
    parser.add_argument(
        "--last-good",
        action="store_true",
        help="with a broken registry, serve what it last said, and tell; services start like this",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from gateway import daemon, server
    from gateway.registry.places import places
    from gateway.rundir import AlreadyRunning, RunDir, Unwritable

    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    plan = _plan(args, places(os.environ))
    if plan is None:
        return EXIT_CONFIG
    settings = plan.served.server
    logging.getLogger().setLevel(settings.log_level.upper())
    try:
        plan.places.make()
        run_dir = RunDir(plan.places.run)
    except (AlreadyRunning, OSError) as error:
        return _taken(str(error))
    try:
        listener = server.bind(settings.host, settings.port)
    except OSError as error:
        run_dir.close()
        return _taken(_port_message(settings.host, settings.port, error))
    _raise_file_limit()
    try:
        asyncio.run(daemon.serve(plan, listener, run_dir))
    except Unwritable as error:
        return _taken(str(error))
    except Exception:
        logging.getLogger("gateway").exception("the gateway failed; this is a bug")
        return EXIT_BUG
    finally:
        run_dir.close()
        _let_go_of_full_disks()
    return 0


def _plan(args: argparse.Namespace, where: Places) -> Plan | None:
    """What to serve, or None after saying what is wrong."""
    from functools import partial

    from gateway.daemon import Plan
    from gateway.registry.load import Loaded
    from gateway.registry.places import config_path, user_config
    from gateway.registry.schema import Registry
    from gateway.supervisor.probe import system_memory

    machine = system_memory()
    path = config_path(args.config, os.environ, folder=Path.cwd())
    if path is None:
        print(NO_REGISTRY.format(user=user_config(os.environ)), file=sys.stderr)  # noqa: T201
        ceiling = machine.ceiling_bytes
        empty = Loaded(registry=Registry(), configured_budget_bytes=ceiling, budget_bytes=ceiling)
        read = _serve_it(empty, args)
    else:
        read = _read(path, args, machine)
    for problem in read.problems:
        print(problem, file=sys.stderr)  # noqa: T201
    again = None if path is None else partial(_read, path, args, machine)
    if read.served is not None:
        return Plan(served=read.served, config=path, read=again, places=where)
    if path is None or not getattr(args, "last_good", False):
        return None
    served = _fall_back(path, args, machine, where)
    return Plan(served=served, config=path, read=again, places=where, refused=read.problems)


def _fall_back(
    path: Path, args: argparse.Namespace, machine: SystemMemory, where: Places
) -> Served:
    """What the registry last said, or no models: a service that ends is started in vain, for ever.

    The last resort is alone on this machine, so that nobody reaches what had keys.
    """
    from gateway.registry.last_good import LastGood
    from gateway.registry.load import Loaded, parse
    from gateway.registry.places import last_good_path
    from gateway.registry.schema import Registry, Server
    from gateway.router import Router
    from gateway.served import Served

    text = LastGood(last_good_path(where)).read()
    if text is not None:
        name = str(last_good_path(where))
        base = path.parent
        kept = parse(text, file=name, base=base, environ=os.environ, machine=machine)
        read = _serve_it(kept, args)
        if read.served is not None:
            log.error("%s is broken, see above: serving what it last said", path)
            return read.served
    log.error("%s is broken, see above, and there is no good copy of it: serving no models", path)
    ceiling = machine.ceiling_bytes
    empty = Loaded(registry=Registry(), configured_budget_bytes=ceiling, budget_bytes=ceiling)
    return _serve_it(empty, args).served or Served(empty, Router(()), Server())


def _read(path: Path, args: argparse.Namespace, machine: SystemMemory) -> Read:
    """The registry as it is now, with flags and variables applied."""
    from gateway.registry.load import load

    return _serve_it(load(path, environ=os.environ, machine=machine), args)


def _serve_it(loaded: Loaded, args: argparse.Namespace) -> Read:
    from gateway.registry.places import places
    from gateway.registry.settings import server_settings
    from gateway.reload import Read
    from gateway.router import Router
    from gateway.security.guard import needs_keys
    from gateway.served import Served

    if loaded.registry is None or loaded.budget_bytes is None:
        return Read(None, loaded.problems)
    names = ("host", "port", "log_level", "log_file", "allow_insecure")
    flags = {name: getattr(args, name, None) for name in names}
    server, problems = server_settings(loaded.registry.server, flags=flags, environ=os.environ)
    if problems:
        return Read(None, (*loaded.problems, *problems))
    if needs_keys(server):
        return Read(None, (*loaded.problems, _insecure(server.host)))
    prompts = places(os.environ).cache / "prompts"
    return Read(Served(loaded, Router(loaded.models), server, prompts), loaded.problems)


def _insecure(host: str) -> Problem:
    from gateway.registry.problems import Problem

    return Problem(
        "error",
        "server",
        0,
        "host",
        f"{host} can be reached from other machines and there are no keys; add server.api_keys, "
        "listen on 127.0.0.1, or say allow_insecure: true (--allow-insecure)",
    )


def _taken(message: str) -> int:
    print(f"mlx-gateway cannot start: {message}", file=sys.stderr)  # noqa: T201
    return EXIT_TAKEN


def _port_message(host: str, port: int, error: OSError) -> str:
    """The address, who has it where the system tells, and the flag that helps."""
    import errno

    from gateway.listeners import listener_of

    if error.errno != errno.EADDRINUSE:
        return f"cannot listen on {host}:{port}: {error.strerror}"
    listener = listener_of(port)
    owner = f" by {listener}" if listener else ""
    return f"port {port} on {host} is taken{owner}; choose another with --port"


def _let_go_of_full_disks() -> None:
    """Output that still waits to be written would change the exit code of an orderly end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _raise_file_limit() -> None:
    """launchd gives a service 256 descriptors; a thousand streams need more."""
    import resource

    wanted = 10240
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
