"""The files under `deploy/`, as `python -m gateway.service.templates` writes them. Pure but for
`main`."""

from __future__ import annotations

from pathlib import Path

from gateway.service.description import LABEL, UNIT, Service
from gateway.service.launchd import Launchd
from gateway.service.systemd import Systemd


def templates() -> dict[str, bytes]:
    """Content by path below `deploy/`, for a user `operator` with everything at home."""
    mac, linux = Path("/Users/operator"), Path("/home/operator")
    on_mac = _service(mac, mac / "Library" / "Logs" / "mlx-gateway")
    on_linux = _service(linux, linux / ".local" / "state" / "mlx-gateway" / "logs")
    return {
        f"launchd/{LABEL}.agent.plist": Launchd(mac, 501).render(on_mac),
        f"launchd/{LABEL}.daemon.plist": Launchd(mac, 0, system=True).render(on_mac),
        f"systemd/{UNIT}": Systemd(linux).render(on_linux),
    }


def _service(home: Path, logs: Path) -> Service:
    return Service(
        python=home / "mlx-gateway" / ".venv" / "bin" / "python",
        config=home / ".config" / "mlx-gateway" / "registry.yaml",
        home=home,
        logs=logs,
        user="operator",
    )


def main() -> None:
    folder = Path(__file__).parents[2] / "deploy"
    for name, content in templates().items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
