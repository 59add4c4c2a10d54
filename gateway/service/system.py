"""What the verbs ask of either system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.service.description import Service
from gateway.service.steps import Step


@dataclass(frozen=True, slots=True)
class Status:
    """`file` is whether it is installed; `pid` is of the running gateway."""

    file: bool
    loaded: bool
    pid: int | None = None
    last_exit: int | None = None


class System(Protocol):
    """One of launchd and systemd, for one service. Everything but the steps is decided here."""

    @property
    def path(self) -> Path:
        """The service file."""

    def render(self, service: Service) -> bytes:
        """Its content."""

    def problems(self, content: bytes) -> list[str]:
        """What is wrong with a content; none for what `render` gives."""

    def install(self, service: Service, status: Status, current: bytes | None) -> Sequence[Step]:
        """From what there is to the service running; no step where it is all there."""

    def uninstall(self, status: Status) -> Sequence[Step]: ...

    def start(self) -> Sequence[Step]: ...

    def stop(self) -> Sequence[Step]: ...

    def restart(self) -> Sequence[Step]: ...

    @property
    def question(self) -> tuple[str, ...]:
        """The command whose output `status` understands."""

    def status(self, code: int, text: str, current: bytes | None) -> Status: ...
