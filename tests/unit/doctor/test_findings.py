"""Every fault that `doctor` knows, one at a time on a machine that is well otherwise."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.doctor.findings import Surroundings, findings
from gateway.doctor.surroundings import look, owner, refusal
from gateway.registry.load import Loaded, parse
from gateway.supervisor.probe import SystemMemory

GIB = 2**30
MODELS = Path(__file__).parents[2] / "fixtures" / "models"
GOOD = f"models:\n  - {{name: m, path: {MODELS / 'random-nano'}}}\n"


def registry(text: str, memory: int = 32 * GIB) -> Loaded:
    machine = SystemMemory(memory, memory)
    return parse(text.encode(), file="r.yaml", base=Path("/"), environ={}, machine=machine)


WELL = Surroundings(
    platform="linux",
    config=Path("r.yaml"),
    loaded=registry(GOOD),
    port=8000,
    port_owner=None,
    url=None,
    answers=False,
    draining=False,
    ffmpeg="/usr/bin/ffmpeg",
    torch=None,
    openblas="/usr/lib/libopenblas.so.0",
    cuda=False,
    open_files=10240,
    available_bytes=20 * GIB,
    disks=((Path("/state"), 50 * GIB),),
    stale_service=None,
)


def test_a_machine_that_is_well() -> None:
    assert findings(WELL) == []


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("no-registry", {"config": None, "loaded": None}, "there is no registry"),
    ("broken-registry", {"loaded": registry("mdels: []")}, "mdels"),
    (
        "missing-weights",
        {"loaded": registry("models: [{name: gone, path: /nowhere}]")},
        "model 'gone': no such folder: /nowhere",
    ),
    ("port-in-use", {"port_owner": "nginx (pid 5)"}, "port 8000 is taken by nginx (pid 5)"),
    ("address-refused", {"address_refused": "Permission denied"}, "8000: Permission denied"),
    ("no-answer", {"url": "http://x"}, "the gateway at http://x does not answer"),
    ("draining", {"url": "http://x", "answers": True, "draining": True}, "is shutting down"),
    (
        "too-little-memory",
        {"loaded": registry("manager: {memory_budget_gb: 0.1}\n" + GOOD)},
        "larger than the budget of 102.4 MiB: m",
    ),
    ("memory-in-use", {"available_bytes": 2**20}, "1.0 MiB of memory are free now"),
    ("no-ffmpeg", {"ffmpeg": None}, "ffmpeg is not installed"),
    ("torch", {"torch": "/venv/torch"}, "torch is installed beside the engines, in /venv/torch"),
    ("no-openblas", {"openblas": None}, "OpenBLAS is not installed"),
    ("few-files", {"open_files": 256}, "may open 256 files"),
    ("disk-full", {"disks": ((Path("/state"), 2**20),)}, "1.0 MiB are free in /state"),
    ("stale-service", {"stale_service": "it runs /gone"}, "out of date: it runs /gone"),
]


@pytest.mark.parametrize(("fault", "change", "told"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_each_fault_is_found(fault: str, change: dict[str, Any], told: str) -> None:
    (found,) = findings(replace(WELL, **change))
    assert found.id == fault
    assert told in found.what
    assert found.why
    assert found.todo


def test_errors_come_first() -> None:
    found = findings(replace(WELL, ffmpeg=None, port_owner="x", openblas=None))
    assert [finding.level for finding in found] == ["error", "warning", "warning"]


def test_a_mac_and_a_graphics_card_need_no_openblas() -> None:
    assert findings(replace(WELL, openblas=None, platform="darwin")) == []
    assert findings(replace(WELL, openblas=None, cuda=True)) == []


# --- looking --------------------------------------------------------------------------------------


def test_looking_finds_what_is_there(tmp_path: Path) -> None:
    config = tmp_path / "registry.yaml"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config.write_text(f"server: {{port: {port}}}\n{GOOD}")
        environ = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
        seen = look(str(config), environ, status=None, url=None)
        assert (seen.config, seen.port) == (config, port)
        assert seen.port_owner is not None
        assert f"pid {os.getpid()}" in seen.port_owner
    assert owner("127.0.0.1", port) is None
    assert seen.ffmpeg is None
    assert seen.torch is None, "the environment of the tests has to be like that of the engines"
    assert seen.platform == sys.platform
    assert seen.available_bytes > 0
    assert seen.open_files > 0
    assert len(seen.disks) == 2
    assert seen.loaded is not None
    assert not seen.loaded.errors


def test_an_address_of_another_machine_is_nobodys_port() -> None:
    assert owner("203.0.113.1", 8000) is None
    assert refusal("203.0.113.1", 8000) is not None
    assert refusal("127.0.0.1", 0) is None


def test_a_stale_service_file_is_seen(tmp_path: Path) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text(GOOD)
    environ = {"HOME": str(tmp_path)}
    assert look(str(config), environ, status={}, url=None).stale_service is None
    unit = tmp_path / ".config" / "systemd" / "user" / "mlx-gateway.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/gone\n")
    assert str(unit) in str(look(str(config), environ, status={}, url=None).stale_service)
