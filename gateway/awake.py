"""Keeps a Mac from falling asleep while calls run, by a `caffeinate` that lives no longer.

`Awake` owns the process. It is asked every few seconds, which is soon enough for a machine that
falls asleep after minutes. (not run on macOS)
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

log = logging.getLogger("gateway")

STOP_S = 5.0


def caffeinate(platform: str = sys.platform) -> tuple[str, ...]:
    """No idle sleep for as long as this process lives; nothing on other systems."""
    return ("caffeinate", "-i", "-w", str(os.getpid())) if platform == "darwin" else ()


class Awake:
    """Without a `command` it does nothing. One that cannot run is tried once."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that keeps the machine awake now."""
        return None if self._process is None else self._process.pid

    async def look(self, *, busy: bool) -> None:
        """Begins to keep the machine awake, or ends it."""
        if self._process is not None and (not busy or self._process.returncode is not None):
            await self.close()
        if busy and self._process is None and self._command:
            await self._begin()

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _begin(self) -> None:
        null = asyncio.subprocess.DEVNULL
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=null, stdout=null, stderr=null
            )
        except OSError as error:
            log.warning(
                "cannot keep this machine awake while calls run: %s: %s",
                self._command[0],
                error.strerror or error,
            )
            self._command = ()
