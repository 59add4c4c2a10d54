"""What the person at the command line is told when a task cannot be done."""

from __future__ import annotations

from engines import wire


class ToolError(Exception):
    """The message says what is wrong and what to do; `code` decides the exit code."""

    def __init__(self, message: str, code: wire.ToolFailure = "failed") -> None:
        super().__init__(message)
        self.code: wire.ToolFailure = code
