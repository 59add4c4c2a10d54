"""A task of `python -m engines.tools` at the command line: its progress, and how it ends."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gateway.cli import exits
from gateway.cli.client import CliError
from gateway.cli.screen import Bar, plain, say

if TYPE_CHECKING:
    from engines import wire

_CODES = {
    "usage": exits.USAGE,
    "not_found": exits.NOT_FOUND,
    "refused": exits.REFUSED,
    "unreachable": exits.UNREACHABLE,
    "failed": exits.FAILED,
}


def do(task: wire.ToTool, *, interrupted: str = "") -> dict[str, Any]:
    """Runs a task to its end. Raises `CliError`; a Ctrl-C says `interrupted` and goes on up."""
    from gateway.modeltools.child import TaskFailed, run_task

    bars = _Bars()
    try:
        return run_task(task, bars.show, os.environ)
    except TaskFailed as error:
        bars.end()
        raise CliError(plain(error), _CODES[error.code]) from error
    except KeyboardInterrupt:
        bars.end()
        if interrupted:
            say(interrupted, to=sys.stderr)
        raise
    finally:
        bars.end()


class _Bars:
    """A bar for each stage."""

    def __init__(self) -> None:
        self._stage = ""
        self._bar: Bar | None = None
        self._live = sys.stderr.isatty()

    def show(self, progress: wire.Loading) -> None:
        from gateway.registry.units import format_size

        if self._bar is None or progress.stage != self._stage:
            self.end()
            self._stage, self._bar = progress.stage, Bar(plain(progress.stage))
        done, total = progress.done_bytes, progress.total_bytes
        # Figures change all the time, and elsewhere each change would be a line.
        note = f"{format_size(done)} of {format_size(total)}" if self._live and total else ""
        self._bar.show(done, total, note)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.end()
            self._bar = None
