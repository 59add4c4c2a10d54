"""The gateway under launchd: a user's agent, or a daemon of the machine. Pure.

Sources: launchd.plist(5), launchctl(1). (not run on macOS)
"""

from __future__ import annotations

import plistlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.service.description import LABEL, OPEN_FILES, OUTPUT, THROTTLE_S, UMASK, Service
from gateway.service.steps import Folder, Gone, Remove, Run, Step, Write
from gateway.service.system import Status

REQUIRED: dict[str, type] = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "WorkingDirectory": str,
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "SoftResourceLimits": dict,
    "ProcessType": str,
    "Umask": int,
}

LEAVE_S = 180.0
"""A gateway that drains takes its time; launchd kills it after `ExitTimeOut`."""

_PID = re.compile(r"^\s*pid = (\d+)$", re.MULTILINE)
_EXIT = re.compile(r"^\s*last exit code = (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Launchd:
    """`uid` is of the user whose agent it is; a `system` daemon belongs to root."""

    home: Path
    uid: int
    system: bool = False

    @property
    def path(self) -> Path:
        folder = Path("/Library/LaunchDaemons") if self.system else self._agents
        return folder / f"{LABEL}.plist"

    @property
    def _agents(self) -> Path:
        return self.home / "Library" / "LaunchAgents"

    @property
    def _domain(self) -> str:
        return "system" if self.system else f"gui/{self.uid}"

    @property
    def _target(self) -> str:
        return f"{self._domain}/{LABEL}"

    def render(self, service: Service) -> bytes:
        document: dict[str, Any] = {
            "Label": LABEL,
            "ProgramArguments": list(service.command),
            "EnvironmentVariables": service.environment,
            "WorkingDirectory": str(service.config.parent),
            "StandardOutPath": str(service.logs / OUTPUT),
            "StandardErrorPath": str(service.logs / OUTPUT),
            "RunAtLoad": True,
            # 0 is "asked to stop"; anything else is worth another try.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": THROTTLE_S,
            "ExitTimeOut": service.stop_s,
            "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "ProcessType": "Interactive",
            "Umask": UMASK,
        }
        if self.system:
            document["UserName"] = service.user
        return plistlib.dumps(document, sort_keys=True)

    def problems(self, content: bytes) -> list[str]:
        try:
            document = plistlib.loads(content)
        except (plistlib.InvalidFileException, ValueError) as error:
            return [f"it is no property list: {error}"]
        if not isinstance(document, dict):
            return ["it is no dictionary"]
        wrong = [
            f"{key} is missing or not a {kind.__name__}"
            for key, kind in REQUIRED.items()
            if not isinstance(document.get(key), kind)
        ]
        if wrong:
            return wrong
        program = document["ProgramArguments"]
        paths = [program[0] if program else "", document["WorkingDirectory"]]
        return [f"{path!r} is no absolute path" for path in paths if not path.startswith("/")]

    def install(self, service: Service, status: Status, current: bytes | None) -> Sequence[Step]:
        content = self.render(service)
        if current == content and status.loaded:
            return ()
        steps: list[Step] = [Folder(service.logs)]
        if status.loaded:
            steps += self._leave
        if current != content:
            steps.append(Write(self.path, content))
        # A service that was disabled once cannot be bootstrapped.
        steps.append(Run(("launchctl", "enable", self._target)))
        steps.append(Run(self._bootstrap))
        return steps

    def uninstall(self, status: Status) -> Sequence[Step]:
        steps: list[Step] = []
        if status.loaded:
            steps += self._leave
        if status.file:
            steps.append(Remove(self.path))
        return steps

    def start(self) -> Sequence[Step]:
        # It may have been booted out by `stop`; bootstrapping twice fails and does no harm.
        return [Run(self._bootstrap, may_fail=True), Run(("launchctl", "kickstart", self._target))]

    def stop(self) -> Sequence[Step]:
        return self._leave

    def restart(self) -> Sequence[Step]:
        return [Run(("launchctl", "kickstart", "-k", self._target))]

    @property
    def _leave(self) -> list[Step]:
        """`bootout` may say that it is in progress, and a bootstrap before its end fails."""
        bootout = ("launchctl", "bootout", self._target)
        return [
            Run(bootout, undo=self._bootstrap, may_fail=True),
            Gone(self.question, LEAVE_S),
        ]

    @property
    def _bootstrap(self) -> tuple[str, ...]:
        return ("launchctl", "bootstrap", self._domain, str(self.path))

    @property
    def question(self) -> tuple[str, ...]:
        return ("launchctl", "print", self._target)

    def status(self, code: int, text: str, current: bytes | None) -> Status:
        pid, last = _PID.search(text), _EXIT.search(text)
        return Status(
            file=current is not None,
            loaded=code == 0,
            pid=int(pid[1]) if pid and code == 0 else None,
            last_exit=int(last[1]) if last and code == 0 else None,
        )
