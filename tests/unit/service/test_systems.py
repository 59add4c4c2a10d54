"""What is decided for launchd and systemd: files and commands, as data."""

from __future__ import annotations

import plistlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.service.description import LABEL, UNIT, Service
from gateway.service.launchd import Launchd
from gateway.service.steps import (
    Folder,
    Gone,
    Remove,
    Run,
    Said,
    ServiceError,
    Step,
    Write,
    carry_out,
)
from gateway.service.system import Status, System
from gateway.service.systemd import Systemd, exec_start
from gateway.service.templates import templates

SERVICE = Service(
    python=Path("/venv/bin/python"),
    config=Path("/home/me/models/registry.yaml"),
    home=Path("/home/me"),
    logs=Path("/home/me/logs"),
    user="me",
    drain_s=7,
)
AGENT, DAEMON = Launchd(Path("/home/me"), 501), Launchd(Path("/home/me"), 0, system=True)
UNITS, MACHINE = Systemd(Path("/home/me")), Systemd(Path("/home/me"), system=True)
SYSTEMS: list[System] = [AGENT, DAEMON, UNITS, MACHINE]

ABSENT = Status(file=False, loaded=False)
RUNNING = Status(file=True, loaded=True, pid=12)


def commands(steps: object) -> list[str]:
    assert isinstance(steps, list | tuple)
    return [" ".join(step.argv) for step in steps if isinstance(step, Run)]


def kinds(steps: object) -> list[type[Step]]:
    assert isinstance(steps, list | tuple)
    return [type(step) for step in steps]


def test_a_plist_says_what_launchd_has_to_know() -> None:
    said = plistlib.loads(AGENT.render(SERVICE))
    assert said["Label"] == LABEL
    assert said["ProgramArguments"] == [
        *("/venv/bin/python", "-m", "gateway", "serve", "--last-good", "--config"),
        *("/home/me/models/registry.yaml", "--log-file", "/home/me/logs/gateway.log"),
    ]
    assert said["KeepAlive"] == {"SuccessfulExit": False}
    assert (said["ThrottleInterval"], said["ExitTimeOut"]) == (10, 27)
    assert said["SoftResourceLimits"] == {"NumberOfFiles": 10240}
    assert (said["ProcessType"], said["Umask"]) == ("Interactive", 0o077)
    assert said["EnvironmentVariables"]["PATH"].startswith("/venv/bin:/opt/homebrew/bin:")
    assert said["StandardErrorPath"] == "/home/me/logs/service.log"
    assert "UserName" not in said
    assert plistlib.loads(DAEMON.render(SERVICE))["UserName"] == "me"


def test_a_unit_says_what_systemd_has_to_know() -> None:
    lines = UNITS.render(SERVICE).decode().splitlines()
    wanted = {
        *("Type=exec", "Restart=on-failure", "TimeoutStopSec=27", "KillMode=mixed"),
        *("LimitNOFILE=10240", "UMask=0077", "NoNewPrivileges=yes", "WantedBy=default.target"),
        *("RestartPreventExitStatus=78", "StandardError=append:/home/me/logs/service.log"),
    }
    assert wanted <= set(lines)
    assert exec_start(UNITS.render(SERVICE)) == list(SERVICE.command)
    assert {"User=me", "WantedBy=multi-user.target"} <= set(
        MACHINE.render(SERVICE).decode().splitlines()
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_rendered_is_in_order(system: System) -> None:
    assert system.problems(system.render(SERVICE)) == []


PATHS = st.text(
    st.characters(codec="utf-8", exclude_characters="/\x00\n\r", exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=20,
)


@given(PATHS)
def test_any_path_comes_through(name: str) -> None:
    odd = replace(SERVICE, config=Path("/", name, "registry.yaml"))
    assert exec_start(UNITS.render(odd)) == list(odd.command)
    assert plistlib.loads(AGENT.render(odd))["ProgramArguments"] == list(odd.command)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"nonsense", "it is no property list"),
        (plistlib.dumps([]), "it is no dictionary"),
        (plistlib.dumps({"Label": 5}), "Label is missing or not a str"),
        (AGENT.render(replace(SERVICE, python=Path("python"))), "'python' is no absolute path"),
    ],
)
def test_a_wrong_plist_is_told(content: bytes, problem: str) -> None:
    assert problem in AGENT.problems(content)[0]


def test_a_wrong_unit_is_told() -> None:
    relative = UNITS.render(replace(SERVICE, python=Path("python")))
    assert UNITS.problems(relative) == ["'python' is no absolute path"]
    assert "Type is missing" in UNITS.problems(b"[Service]\n")


# --- installing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_installing_twice_does_nothing_the_second_time(system: System) -> None:
    assert list(system.install(SERVICE, RUNNING, system.render(SERVICE))) == []


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (
            AGENT,
            [
                f"launchctl enable gui/501/{LABEL}",
                f"launchctl bootstrap gui/501 /home/me/Library/LaunchAgents/{LABEL}.plist",
            ],
        ),
        (
            DAEMON,
            [
                f"launchctl enable system/{LABEL}",
                f"launchctl bootstrap system /Library/LaunchDaemons/{LABEL}.plist",
            ],
        ),
        (
            UNITS,
            [
                "systemctl --user daemon-reload",
                f"systemctl --user enable {UNIT}",
                f"systemctl --user restart {UNIT}",
            ],
        ),
        (
            MACHINE,
            ["systemctl daemon-reload", f"systemctl enable {UNIT}", f"systemctl restart {UNIT}"],
        ),
    ],
)
def test_a_first_installation(system: System, expected: list[str]) -> None:
    steps = list(system.install(SERVICE, ABSENT, None))
    assert kinds(steps)[:2] == [Folder, Write]
    assert steps[1] == Write(system.path, system.render(SERVICE))
    assert commands(steps) == expected


def test_a_changed_agent_leaves_before_its_file_is_replaced() -> None:
    steps = list(AGENT.install(SERVICE, RUNNING, b"older"))
    assert kinds(steps) == [Folder, Run, Gone, Write, Run, Run]
    assert commands(steps)[0] == f"launchctl bootout gui/501/{LABEL}"


def test_a_failed_update_of_a_unit_has_the_old_one_run_again(tmp_path: Path) -> None:
    units = Systemd(tmp_path)
    old = units.render(replace(SERVICE, drain_s=99))
    units.path.parent.mkdir(parents=True)
    units.path.write_bytes(old)
    service = replace(SERVICE, logs=tmp_path / "logs")
    ran: list[str] = []

    def run(argv: Sequence[str]) -> Said:
        ran.append(argv[2])
        return Said(5 if ran == ["daemon-reload", "enable", "restart"] else 0)

    with pytest.raises(ServiceError, match="as it was before"):
        carry_out(units.install(service, RUNNING, old), run)
    assert units.path.read_bytes() == old
    assert ran[3:] == ["daemon-reload", "restart"]  # and it is still enabled


def test_an_agent_that_was_stopped_is_started_again() -> None:
    stopped = Status(file=True, loaded=False)
    steps = list(AGENT.install(SERVICE, stopped, AGENT.render(SERVICE)))
    assert kinds(steps) == [Folder, Run, Run]


@pytest.mark.parametrize("system", SYSTEMS)
def test_uninstalling_what_is_not_there_does_nothing(system: System) -> None:
    assert list(system.uninstall(ABSENT)) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_uninstalling_stops_it_and_removes_the_file(system: System) -> None:
    steps = list(system.uninstall(RUNNING))
    assert Remove(system.path) in steps
    assert "bootout" in commands(steps)[0] or "disable --now" in commands(steps)[0]


@pytest.mark.parametrize(
    ("system", "verb", "expected"),
    [
        (AGENT, "start", [f"bootstrap gui/501 {AGENT.path}", f"kickstart gui/501/{LABEL}"]),
        (AGENT, "stop", [f"bootout gui/501/{LABEL}"]),
        (AGENT, "restart", [f"kickstart -k gui/501/{LABEL}"]),
        (UNITS, "start", [f"--user start {UNIT}"]),
        (UNITS, "stop", [f"--user stop {UNIT}"]),
        (MACHINE, "restart", [f"restart {UNIT}"]),
    ],
)
def test_steering(system: System, verb: str, expected: list[str]) -> None:
    steps = list(getattr(system, verb)())
    assert [command.split(" ", 1)[1] for command in commands(steps)] == expected


# --- status ---------------------------------------------------------------------------------------

PRINTED = """\
gui/501/org.mlx-gateway.serve = {
	active count = 1
	state = running
	pid = 4711
	last exit code = 0
}"""


@pytest.mark.parametrize(
    ("system", "code", "text", "status"),
    [
        (AGENT, 0, PRINTED, Status(True, True, 4711, 0)),
        (AGENT, 113, "Could not find service", Status(True, False)),
        (
            AGENT,
            0,
            "\tstate = waiting\n\tlast exit code = 78: EX_CONFIG",
            Status(True, True, None, 78),
        ),
        (UNITS, 0, "LoadState=loaded\nMainPID=12\nExecMainStatus=0", Status(True, True, 12, 0)),
        (UNITS, 0, "LoadState=loaded\nMainPID=0\nExecMainStatus=70", Status(True, True, None, 70)),
        (UNITS, 0, "LoadState=not-found\nMainPID=0\nExecMainStatus=0", Status(True, False)),
        (UNITS, 1, "Failed to connect to bus", Status(True, False)),
    ],
)
def test_status(system: System, code: int, text: str, status: Status) -> None:
    assert system.status(code, text, b"file") == status


def test_the_files_of_deploy_are_current() -> None:
    folder = Path(__file__).parents[3] / "deploy"
    for name, content in templates().items():
        current = (folder / name).read_bytes()
        assert current == content, "run python -m gateway.service.templates"
