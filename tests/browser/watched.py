"""Pages that note what goes wrong in them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

LOCAL = {"blob", "data"}


class Watched:
    """Opens pages. `problems` holds console errors, failed scripts and requests to other hosts.

    The browser itself logs every answer that is an error; a test puts a part of what it expects
    there into `expected`.
    """

    def __init__(self, browser: Browser, timeout_ms: float) -> None:
        self.problems: list[str] = []
        self.expected: set[str] = set()
        self._browser = browser
        self._timeout_ms = timeout_ms
        self._contexts: list[BrowserContext] = []

    def open(self, url: str, place: str = "", **options: Any) -> Page:
        """The dashboard at `place`, once it has said how the gateway is."""
        page = self.visit(url, place, **options)
        expect(page.locator("#state")).to_have_text("running")
        return page

    def visit(self, url: str, place: str = "", **options: Any) -> Page:
        """The dashboard, whatever it says. `options` are those of a browser's context."""
        context = self._browser.new_context(**options)
        context.set_default_timeout(self._timeout_ms)
        expect.set_options(timeout=self._timeout_ms)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("request", lambda request: self._request(request, url))
        page.goto(f"{url}/{place}")
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _console(self, message: ConsoleMessage) -> None:
        expected = any(part in message.text for part in self.expected)
        if message.type in ("error", "warning") and not expected:
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Request, url: str) -> None:
        asked = urlsplit(request.url)
        if asked.scheme not in LOCAL and asked.netloc != urlsplit(url).netloc:
            self.problems.append(f"asked another host: {request.url}")
