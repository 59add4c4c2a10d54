"""Where things are: configuration, state, cache, logs, run directory. Pure but for `make`.

`MLX_GATEWAY_STATE_DIR` moves state, logs and run directory together, which is how two gateways
live on one machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_NAME = "mlx-gateway"


@dataclass(frozen=True, slots=True)
class Places:
    """`run` holds what belongs to the living daemon: its address, lock and engine pids."""

    state: Path
    cache: Path
    logs: Path
    run: Path

    @property
    def address(self) -> Path:
        """The file that says where the daemon listens."""
        return self.run / "address"

    def make(self) -> None:
        """Creates every folder for this user alone. Raises `OSError`."""
        for folder in (self.state, self.cache, self.logs, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)


def places(environ: Mapping[str, str], platform: str = sys.platform) -> Places:
    """Relative folders in variables are ignored, as the XDG specification asks."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        library = home / "Library"
        state = library / "Application Support" / _NAME
        cache = library / "Caches" / _NAME
        logs = library / "Logs" / _NAME
    else:
        state = _xdg(environ, "XDG_STATE_HOME", home / ".local" / "state") / _NAME
        cache = _xdg(environ, "XDG_CACHE_HOME", home / ".cache") / _NAME
        logs = state / "logs"
    if own := environ.get("MLX_GATEWAY_STATE_DIR"):
        state = Path(own).absolute()
        logs = state / "logs"
    return Places(state=state, cache=cache, logs=logs, run=state / "run")


def last_good_path(places: Places) -> Path:
    """The copy of the registry that was last served."""
    return places.state / "registry.last-good.yaml"


def config_path(
    flag: str | None,
    environ: Mapping[str, str],
    *,
    folder: Path,
    exists: Callable[[Path], bool] = Path.exists,
) -> Path | None:
    """The registry file: flag, `MLX_GATEWAY_CONFIG`, `registry.yaml` in `folder`, the user's own.

    A file that was asked for counts whether it exists or not, so that its absence is an error.
    None when nothing was asked for and nothing is there.
    """
    if asked := flag or environ.get("MLX_GATEWAY_CONFIG"):
        return folder / asked
    local, user = folder / "registry.yaml", user_config(environ)
    return next((path for path in (local, user) if exists(path)), None)


def user_config(environ: Mapping[str, str]) -> Path:
    """Where a user's own registry is looked for."""
    home = Path(environ.get("HOME") or Path.home())
    return _xdg(environ, "XDG_CONFIG_HOME", home / ".config") / _NAME / "registry.yaml"


def _xdg(environ: Mapping[str, str], variable: str, default: Path) -> Path:
    value = environ.get(variable, "")
    return Path(value) if value.startswith("/") else default
