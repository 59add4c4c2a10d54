"""What a service file says, whatever system it is for. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.registry.places import Places

LABEL = "org.mlx-gateway.serve"
UNIT = "mlx-gateway.service"
LOG = "gateway.log"
OUTPUT = "service.log"
"""What comes before the log is open, or beside it: tracebacks of a start that failed."""

EXIT_SLACK_S = 20
"""Beyond `drain_s`: stopping every engine takes some seconds more, and is bounded too."""

OPEN_FILES = 10_240
THROTTLE_S = 10
UMASK = 0o077

PLACE_VARIABLES = (
    "MLX_GATEWAY_STATE_DIR",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
)

_FOLDERS = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
"""Where ffmpeg and its like are; a service gets no shell's PATH."""


@dataclass(frozen=True, slots=True)
class Service:
    """One gateway to be run by the system. Paths are absolute; secrets are in none of the fields.

    A service of the whole machine runs as `user`, without anyone logged in.
    """

    python: Path
    config: Path
    home: Path
    logs: Path
    user: str
    drain_s: float = 10
    places: tuple[tuple[str, str], ...] = ()
    """Variables that say where things are; the service has to look in the same places."""

    @property
    def command(self) -> tuple[str, ...]:
        """What is run: a registry that got broken since the last start does not keep it down."""
        serve = ("-m", "gateway", "serve", "--last-good", "--config", str(self.config))
        return (str(self.python), *serve, "--log-file", str(self.logs / LOG))

    @property
    def environment(self) -> dict[str, str]:
        folders = dict.fromkeys((str(self.python.parent), *_FOLDERS))
        return {"HOME": str(self.home), "PATH": ":".join(folders), **dict(self.places)}

    @property
    def stop_s(self) -> int:
        """How long the system has to wait before it kills."""
        return round(self.drain_s) + EXIT_SLACK_S


def describe(
    config: Path, places: Places, environ: Mapping[str, str], *, drain_s: float
) -> Service:
    """The service that would run what this program is, for this user."""
    return Service(
        python=Path(sys.executable).absolute(),
        config=config.absolute(),
        home=Path(environ.get("HOME") or Path.home()),
        logs=places.logs,
        user=environ.get("SUDO_USER") or environ.get("USER") or environ.get("LOGNAME") or "root",
        drain_s=drain_s,
        places=tuple((name, environ[name]) for name in PLACE_VARIABLES if environ.get(name)),
    )
