"""What a service file starts, really started; and a registry that breaks between two starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.service.description import Service
from gateway.service.systemd import Systemd, exec_start
from tests.harness.daemon import (
    STOP_TIMEOUT_S,
    Daemon,
    await_address,
    daemon,
    environ,
    living,
    registry,
    scripted,
    write,
)

pytestmark = pytest.mark.anyio

MODELS = registry(scripted("model"), server={"port": 0})
BROKEN = "models:\n  - name: model\n    engine: scripted\n    pth: x\n"
LAST_GOOD = ("--last-good",)


def started(argv: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env=environ(folder, {}))


async def test_the_unit_runs_and_ends_in_order(tmp_path: Path) -> None:
    write(MODELS, tmp_path)
    service = Service(
        Path(sys.executable), tmp_path / "registry.yaml", tmp_path, tmp_path / "logs", "me"
    )
    argv = exec_start(Systemd(tmp_path).render(service))
    process = started(argv, tmp_path)
    try:
        address = tmp_path / "state" / "run" / "address"
        gateway = Daemon(process, await_address(process, address, tmp_path / "log"), tmp_path)
        assert (await gateway.get("/health")).status_code == 200
        assert (await gateway.chat("model")).status_code == 200
        engines = gateway.engines()
        assert engines
        process.terminate()
        assert process.wait(STOP_TIMEOUT_S) == 0
        assert not living(engines)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)


async def test_a_broken_registry_falls_back_on_what_it_last_said(tmp_path: Path) -> None:
    with daemon(MODELS, tmp_path, flags=LAST_GOOD) as gateway:
        await gateway.until(lambda _: (tmp_path / "state" / "registry.last-good.yaml").exists())
    copy = tmp_path / "state" / "registry.last-good.yaml"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.read_text() == (tmp_path / "registry.yaml").read_text()
    with daemon(BROKEN, tmp_path, flags=LAST_GOOD) as gateway:
        assert (await gateway.chat("model")).status_code == 200
        last = (await gateway.status())["last_reload"]
        assert (last["result"], last["cause"]) == ("refused", "start")
        assert "pth" in last["problems"][0]["key"]
        assert 'reloads_total{outcome="refused"} 1.0' in (await gateway.get("/metrics")).text
        assert "serving what it last said" in gateway.log
        # The mended file counts at once, and is the copy from then on.
        write(registry(scripted("other"), server={"port": 0}), tmp_path)
        await gateway.until(lambda status: status["models"][0]["name"] == "other")
        await gateway.until(lambda _: "other" in copy.read_text())


async def test_without_a_good_copy_a_service_serves_nothing_and_says_why(tmp_path: Path) -> None:
    with daemon(BROKEN, tmp_path, flags=LAST_GOOD) as gateway:
        assert (await gateway.chat("model")).status_code == 404
        assert (await gateway.status())["last_reload"]["result"] == "refused"
        assert "serving no models" in gateway.log
        write(MODELS, tmp_path)
        await gateway.until(lambda status: bool(status["models"]))
