"""The service verbs against a system that is a list of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.service import launchd, steps
from gateway.service.description import Service
from gateway.service.launchd import Launchd
from gateway.service.manager import Manager, stale, this_system
from gateway.service.steps import Said, ServiceError, run_command
from gateway.service.systemd import Systemd


@dataclass
class FakeSystem:
    """Answers every command with 0 but those that hold a word of `fails`; keeps whether loaded."""

    loaded: bool = False
    fails: str = "nothing"
    ran: list[str] = field(default_factory=list)
    leaves_after: int = 0
    """A `bootout` is in progress for so many looks at it; no bootstrap works meanwhile."""
    leaving: int = 0

    def __call__(self, argv: Sequence[str]) -> Said:
        command = " ".join(argv[1:])
        if argv[1] == "print":
            self.leaving = max(0, self.leaving - 1)
            return Said(0, "\tpid = 5\n") if self.loaded or self.leaving else Said(113)
        self.ran.append(command)
        if self.fails in command or (self.leaving and argv[1] == "bootstrap"):
            return Said(5, "Input/output error")
        if argv[1] == "bootout" and self.leaves_after:
            self.leaving, self.leaves_after, self.loaded = self.leaves_after, 0, False
            return Said(36, "Operation now in progress")
        self.loaded = {"bootstrap": True, "bootout": False}.get(argv[1], self.loaded)
        return Said(0)


@dataclass
class Setup:
    system: Launchd
    service: Service
    fake: FakeSystem
    said: list[str] = field(default_factory=list)

    @property
    def manager(self) -> Manager:
        return Manager(self.system, self.said.append, self.fake)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    config = tmp_path / "registry.yaml"
    config.write_text("models: []\n")
    python = tmp_path / "python"
    python.touch()
    service = Service(python, config, tmp_path, tmp_path / "logs", "me")
    return Setup(Launchd(tmp_path, 501), service, FakeSystem())


def test_a_whole_life(setup: Setup) -> None:
    manager = setup.manager
    manager.install(setup.service)
    assert setup.system.path.read_bytes() == setup.system.render(setup.service)
    assert setup.system.path.stat().st_mode & 0o777 == 0o644
    assert (setup.service.logs.stat().st_mode & 0o777) == 0o700
    assert manager.status().pid == 5
    ran = len(setup.fake.ran)
    manager.install(setup.service)
    assert len(setup.fake.ran) == ran
    assert "nothing to do" in setup.said[-1]
    manager.restart()
    manager.stop()
    assert manager.status().pid is None
    manager.start()
    assert manager.status().pid == 5
    manager.uninstall()
    assert not setup.system.path.exists()
    assert manager.status().pid is None
    manager.uninstall()
    assert "nothing to do" in setup.said[-1]


def test_a_failed_first_installation_leaves_nothing(setup: Setup) -> None:
    setup.fake.fails = "bootstrap"
    with pytest.raises(ServiceError, match=r"bootstrap .* failed with 5: Input/output error"):
        setup.manager.install(setup.service)
    assert not setup.system.path.exists()


def test_a_failed_update_brings_the_old_service_back(setup: Setup) -> None:
    setup.manager.install(setup.service)
    old = setup.system.path.read_bytes()
    setup.fake.fails = "enable"
    with pytest.raises(ServiceError, match="as it was before"):
        setup.manager.install(replace(setup.service, drain_s=99))
    assert setup.system.path.read_bytes() == old
    assert setup.fake.loaded


def test_an_update_waits_for_a_gateway_that_drains(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "POLL_S", 0)
    setup.manager.install(setup.service)
    setup.fake.leaves_after = 3
    setup.manager.install(replace(setup.service, drain_s=99))
    assert setup.fake.loaded
    assert b"119" in setup.system.path.read_bytes()  # its ExitTimeOut
    monkeypatch.setattr(launchd, "LEAVE_S", 0)
    setup.fake.leaves_after = 3
    with pytest.raises(ServiceError, match="has not ended within 0 s"):
        setup.manager.stop()


def test_a_dry_run_changes_nothing(setup: Setup) -> None:
    setup.manager.install(setup.service, dry_run=True)
    assert setup.fake.ran == []
    assert not setup.system.path.exists()
    assert f"write {setup.system.path}" in setup.said[0]
    assert "<key>ProgramArguments</key>" in setup.said[1]


@pytest.mark.parametrize("verb", ["start", "stop", "restart"])
def test_without_a_service_there_is_nothing_to_steer(setup: Setup, verb: str) -> None:
    with pytest.raises(ServiceError, match="no service is installed"):
        getattr(setup.manager, verb)()
    assert setup.fake.ran == []


def test_a_stale_service_is_noticed(setup: Setup) -> None:
    assert stale(setup.system, setup.service) is None
    setup.manager.install(setup.service)
    assert stale(setup.system, setup.service) is None
    changed = replace(setup.service, drain_s=99)
    assert "is not what this version would install" in str(stale(setup.system, changed))
    setup.service.python.unlink()
    assert str(stale(setup.system, setup.service)).endswith("python, which is gone")
    setup.system.path.write_bytes(b"broken")
    assert "it is no property list" in str(stale(setup.system, setup.service))


def test_each_platform_has_its_system() -> None:
    assert isinstance(this_system({"HOME": "/x"}, platform="darwin"), Launchd)
    assert isinstance(this_system({"HOME": "/x"}, platform="linux"), Systemd)


def test_a_missing_program_is_a_failure_like_any_other() -> None:
    assert run_command(["no-such-launchctl"]).code == 127
    assert run_command(["sh", "-c", "echo said; exit 3"]) == Said(3, "said")


def test_a_program_that_may_not_be_run_is_a_failure_too(tmp_path: Path) -> None:
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\n")
    said = run_command([str(program)])
    assert (said.code, "Permission denied" in said.text) == (126, True)
