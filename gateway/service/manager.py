"""What the verbs do: look, decide by `System`, carry out. Owns nothing between two calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.service.description import Service
from gateway.service.launchd import Launchd
from gateway.service.steps import Runner, ServiceError, carry_out, run_command, told
from gateway.service.system import Status, System
from gateway.service.systemd import Systemd

Say = Callable[[str], None]


def this_system(
    environ: Mapping[str, str], *, system: bool = False, platform: str = sys.platform
) -> System:
    """launchd on a Mac, systemd elsewhere."""
    home = Path(environ.get("HOME") or Path.home())
    return Launchd(home, os.getuid(), system) if platform == "darwin" else Systemd(home, system)


class Manager:
    """The service on this system. Every method raises `ServiceError` with what to do."""

    def __init__(self, system: System, say: Say, run: Runner = run_command) -> None:
        self._system = system
        self._say = say
        self._run = run

    def current(self) -> bytes | None:
        """The service file as it is; None without one."""
        try:
            return self._system.path.read_bytes()
        except OSError:
            return None

    def status(self) -> Status:
        said = self._run(self._system.question)
        return self._system.status(said.code, said.text, self.current())

    def install(self, service: Service, *, dry_run: bool = False) -> None:
        content = self._system.render(service)
        if problems := self._system.problems(content):
            raise ServiceError(f"the service file would be wrong: {'; '.join(problems)}")
        steps = self._system.install(service, self.status(), self.current())
        if not steps:
            self._say(f"{self._system.path} is installed and running already; nothing to do")
            return
        if dry_run:
            self._say("\n".join(told(steps)))
            self._say(content.decode())
            return
        carry_out(steps, self._run)
        self._say(f"installed {self._system.path}; the gateway starts now and after every login")

    def uninstall(self, *, dry_run: bool = False) -> None:
        steps = self._system.uninstall(self.status())
        if not steps:
            self._say("no service is installed; nothing to do")
        elif dry_run:
            self._say("\n".join(told(steps)))
        else:
            carry_out(steps, self._run)
            self._say(f"removed {self._system.path}; registry, state and logs stay")

    def start(self) -> None:
        self._need()
        carry_out(self._system.start(), self._run)
        self._say("started")

    def stop(self) -> None:
        self._need()
        carry_out(self._system.stop(), self._run)
        self._say("stopped; it starts again at the next login, or with `service start`")

    def restart(self) -> None:
        self._need()
        carry_out(self._system.restart(), self._run)
        self._say("restarted")

    def _need(self) -> None:
        if self.current() is None:
            raise ServiceError("no service is installed; `mlx-gateway service install` does that")


def stale(system: System, service: Service) -> str | None:
    """Why the installed service file is out of date; None where it is not, or there is none.

    `service` is what an installation would describe now.
    """
    try:
        current = system.path.read_bytes()
    except OSError:
        return None
    problems = system.problems(current)
    if problems:
        return f"{system.path}: {problems[0]}"
    if current != system.render(service):
        return f"{system.path} is not what this version would install"
    missing = next((path for path in (service.python, service.config) if not path.exists()), None)
    return None if missing is None else f"{system.path} runs {missing}, which is gone"
