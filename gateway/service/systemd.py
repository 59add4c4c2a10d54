"""The gateway under systemd: a unit of the user's, or of the machine. Pure.

Sources: systemd.service(5), systemd.exec(5), systemctl(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.service.description import OPEN_FILES, OUTPUT, THROTTLE_S, UMASK, UNIT, Service
from gateway.service.steps import Folder, IfFails, Remove, Run, Step, Write
from gateway.service.system import Status

EXIT_CONFIG = 78
REQUIRED = ("Type", "ExecStart", "Restart", "TimeoutStopSec", "LimitNOFILE", "UMask", "KillMode")


@dataclass(frozen=True, slots=True)
class Systemd:
    """`home` is of the user whose unit it is; a `system` unit belongs to root."""

    home: Path
    system: bool = False

    @property
    def path(self) -> Path:
        own = self.home / ".config" / "systemd" / "user"
        return (Path("/etc/systemd/system") if self.system else own) / UNIT

    def render(self, service: Service) -> bytes:
        lines = [
            "[Unit]",
            "Description=mlx-gateway: one port for many MLX models",
            "After=network.target",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={' '.join(map(_word, service.command))}",
            "ExecReload=/bin/kill -HUP $MAINPID",
            *(f'Environment="{_escaped(f"{k}={v}")}"' for k, v in service.environment.items()),
            f"WorkingDirectory={_escaped(str(service.config.parent))}",
            f"StandardOutput=append:{_escaped(str(service.logs / OUTPUT))}",
            f"StandardError=append:{_escaped(str(service.logs / OUTPUT))}",
            "Restart=on-failure",
            f"RestartSec={THROTTLE_S}",
            f"RestartPreventExitStatus={EXIT_CONFIG}",
            f"TimeoutStopSec={service.stop_s}",
            # The gateway ends its engines itself; what it has not ended goes with it.
            "KillMode=mixed",
            f"LimitNOFILE={OPEN_FILES}",
            f"UMask={UMASK:04o}",
            "NoNewPrivileges=yes",
            "RestrictSUIDSGID=yes",
            "LockPersonality=yes",
        ]
        if self.system:
            lines += [f"User={service.user}", "PrivateTmp=yes", "ProtectSystem=full"]
        target = "multi-user.target" if self.system else "default.target"
        lines += ["", "[Install]", f"WantedBy={target}"]
        return ("\n".join(lines) + "\n").encode()

    def problems(self, content: bytes) -> list[str]:
        keys = {line.partition("=")[0] for line in content.decode(errors="replace").splitlines()}
        wrong = [f"{key} is missing" for key in REQUIRED if key not in keys]
        program = exec_start(content)
        if program and not program[0].startswith("/"):
            wrong.append(f"{program[0]!r} is no absolute path")
        return wrong

    def install(self, service: Service, status: Status, current: bytes | None) -> Sequence[Step]:
        content = self.render(service)
        if current == content and status.loaded and status.pid is not None:
            return ()
        steps: list[Step] = [Folder(service.logs)]
        disable: tuple[str, ...] = self._ctl("disable", UNIT)
        if current is not None:  # the old file has to be read again, and its service to run
            if status.pid is not None:
                steps.append(IfFails(self._ctl("restart", UNIT)))
            steps.append(IfFails(self._ctl("daemon-reload")))
            disable = ()
        if current != content:
            steps.append(Write(self.path, content))
        steps.append(Run(self._ctl("daemon-reload")))
        steps.append(Run(self._ctl("enable", UNIT), undo=disable))
        steps.append(Run(self._ctl("restart", UNIT)))
        return steps

    def uninstall(self, status: Status) -> Sequence[Step]:
        if not status.file and not status.loaded:
            return []
        return [
            Run(self._ctl("disable", "--now", UNIT), may_fail=not status.loaded),
            Remove(self.path),
            Run(self._ctl("daemon-reload")),
        ]

    def start(self) -> Sequence[Step]:
        return [Run(self._ctl("start", UNIT))]

    def stop(self) -> Sequence[Step]:
        return [Run(self._ctl("stop", UNIT))]

    def restart(self) -> Sequence[Step]:
        return [Run(self._ctl("restart", UNIT))]

    def _ctl(self, *words: str) -> tuple[str, ...]:
        return ("systemctl", *(() if self.system else ("--user",)), *words)

    @property
    def question(self) -> tuple[str, ...]:
        return self._ctl("show", UNIT, "--property=LoadState,MainPID,ExecMainStatus")

    def status(self, code: int, text: str, current: bytes | None) -> Status:
        values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        loaded = code == 0 and values.get("LoadState") == "loaded"
        pid, last = (_number(values.get(key)) for key in ("MainPID", "ExecMainStatus"))
        return Status(current is not None, loaded, pid or None, last if loaded else None)


def _word(word: str) -> str:
    """One word of a command line as systemd reads it: no variable, no specifier, no splitting."""
    return '"' + _escaped(word).replace("$", "$$") + '"'


def exec_start(content: bytes) -> list[str]:
    """The words of the `ExecStart` that `render` wrote."""
    for line in content.decode(errors="replace").splitlines():
        if line.startswith("ExecStart="):
            words = line.partition("=")[2].strip('"').split('" "')
            return [_unescaped(word) for word in words]
    return []


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _unescaped(text: str) -> str:
    plain = text.replace("$$", "$").replace("%%", "%")
    return plain.replace('\\"', '"').replace("\\\\", "\\")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
