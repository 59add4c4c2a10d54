"""What is in force right now: replaced as a whole by a reload, read once by each request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gateway.registry.load import Loaded
from gateway.registry.schema import Server
from gateway.router import Router


@dataclass(frozen=True, slots=True)
class Served:
    """One registry in force: its models by name and the server settings that a reload may change.

    `server` has flags and variables applied, `loaded` is what the file said. `prompts` is the
    folder in which models may keep prompts; None is nowhere.
    """

    loaded: Loaded
    router: Router
    server: Server
    prompts: Path | None = None

    @property
    def configured_budget_bytes(self) -> int:
        """What was asked for, before the machine's ceiling."""
        return self.loaded.configured_budget_bytes or 0


class Live:
    """Holds the one `Served` in force. Only a reload sets `now`."""

    def __init__(self, now: Served) -> None:
        self.now = now
