"""Looks at this machine for `findings`: files, the port, the system. Changes nothing."""

from __future__ import annotations

import errno
import importlib.util
import resource
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.doctor.findings import Surroundings
from gateway.listeners import listener_of
from gateway.registry.load import Loaded, load
from gateway.registry.places import Places, config_path, places
from gateway.registry.schema import Server
from gateway.registry.settings import server_settings
from gateway.service.description import describe
from gateway.service.manager import stale, this_system
from gateway.supervisor.probe import SystemProbe, system_memory
from gateway.supervisor.process import openblas


def look(
    config: str | None,
    environ: Mapping[str, str],
    *,
    status: dict[str, Any] | None,
    url: str | None,
) -> Surroundings:
    """`status` is what the gateway at `url` says of itself; None where it does not answer."""
    where = places(environ)
    path = config_path(config, environ, folder=Path.cwd())
    loaded = None if path is None else load(path, environ=environ, machine=system_memory())
    server = _server(loaded, environ)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Surroundings(
        platform=sys.platform,
        config=path,
        loaded=loaded,
        port=server.port,
        port_owner=None if status is not None else owner(server.host, server.port),
        url=url,
        answers=status is not None,
        draining=bool(status and status.get("draining")),
        ffmpeg=shutil.which("ffmpeg", path=environ.get("PATH")),
        torch=_module("torch"),
        openblas=openblas(),
        cuda=_module("mlx_cuda") is not None or Path("/dev/nvidia0").exists(),
        open_files=2**31 if hard == resource.RLIM_INFINITY else max(soft, hard),
        available_bytes=SystemProbe().available_bytes(),
        disks=_disks(where),
        stale_service=_stale(path, where, environ, server),
        address_refused=None if status is not None else refusal(server.host, server.port),
    )


def owner(host: str, port: int) -> str | None:
    """Who listens on a port that we could not have; None where nobody does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return listener_of(port) or "another program"
    return None


def refusal(host: str, port: int) -> str | None:
    """Why the system lets nobody like us listen there; None where it does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return error.strerror or str(error)
    return None


def _server(loaded: Loaded | None, environ: Mapping[str, str]) -> Server:
    file = loaded.registry.server if loaded and loaded.registry else Server()
    settings, problems = server_settings(file, flags={}, environ=environ)
    return file if problems else settings


def _module(name: str) -> str | None:
    """Where an installed package is; it is not imported."""
    spec = importlib.util.find_spec(name)
    return None if spec is None else str(Path(spec.origin or name).parent)


def _disks(where: Places) -> tuple[tuple[Path, int], ...]:
    free = []
    for folder in (where.state, where.cache):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free.append((folder, shutil.disk_usage(there).free))
    return tuple(free)


def _stale(
    path: Path | None, where: Places, environ: Mapping[str, str], server: Server
) -> str | None:
    """Of the user's service and the machine's, the first that is out of date."""
    if path is None:
        return None
    service = describe(path, where, environ, drain_s=server.drain_s)
    for system in (False, True):
        if reason := stale(this_system(environ, system=system), service):
            return reason
    return None
