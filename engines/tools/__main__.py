"""`python -m engines.tools`: does one task for the command line, and ends."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from engines import process, wire
from engines.tools.errors import ToolError
from engines.tools.line import Line
from engines.tools.secrets import redacted


def main() -> int:
    try:
        connection = process.claim_connection()
    except process.NotAWorkerError as error:
        sys.stderr.write(f"engines.tools: {error}\n")
        return process.EXIT_USAGE
    process.settle()
    line = Line(connection.sock)
    task = line.task()
    line.watch()
    try:
        line.send(wire.ToolDone(_do(task, line)))
    except ToolError as error:
        line.send(wire.ToolFailed(error.code, redacted(str(error))))
        return process.EXIT_LOAD_FAILED
    except Exception as error:  # noqa: BLE001  the libraries raise anything; the person is told
        sys.stderr.write(redacted(traceback.format_exc()))
        told = f"{type(error).__name__}: {error}"
        line.send(wire.ToolFailed("failed", redacted(told)))
        return process.EXIT_BUG
    return process.EXIT_STOPPED


def _do(task: wire.ToTool, line: Line) -> dict[str, Any]:
    """Raises `ToolError`, and what the libraries raise."""
    match task:
        case wire.LookUp():
            from engines.tools.look_up import look_up

            return look_up(task, line.report)
        case wire.Acquire():
            from engines.tools.acquire import acquire

            return acquire(task, line.report)
        case wire.Convert():
            from engines.tools.convert import convert

            return convert(task, line.report)


if __name__ == "__main__":
    sys.exit(main())
