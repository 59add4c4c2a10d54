"""Where this process logs to: stderr or a file, and the book that routes show."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from gateway.logs.files import ENGINE, FileHandler, LogFiles, engine_file
from gateway.logs.lines import Form, Formatter
from gateway.logs.ring import BookHandler, LogBook


class Logging:
    """Owns the root logger's handlers from `begin` to `close`. Engines' files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.book = LogBook()
        self.files = LogFiles()
        self._folder = folder
        self._formatter = Formatter()
        self._before: list[logging.Handler] = []

    def begin(self, file: Path | None, form: Form) -> None:
        """From now on in this loop; with a file, stderr is left alone."""
        root = logging.getLogger()
        self._before = list(root.handlers)
        self.use(form)
        if file is not None:
            root.handlers = [FileHandler(self.files, file, self._formatter)]
        for handler in root.handlers:
            handler.setFormatter(self._formatter)
        root.addHandler(BookHandler(self.book, asyncio.get_running_loop()))

    def use(self, form: Form) -> None:
        """As a reload says; counts from the next line on."""
        self._formatter.form = form

    def heard(self, model: str, data: bytes) -> None:
        """What an engine wrote to its stderr; no bytes mean that it has ended."""
        now = time.time()
        lines = self.book.heard(model, now, data) if data else self.book.ended(model, now)
        if not lines:
            return
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        path = engine_file(self._folder, model)
        for line in lines:
            self.files.write(path, ENGINE, f"{at} {line}")

    def close(self) -> None:
        """Gives the handlers back, and writes what waits to be written."""
        logging.getLogger().handlers = self._before
        self.files.close()
