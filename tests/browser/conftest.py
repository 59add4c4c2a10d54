"""One Chromium, one gateway of scripted models, and pages that may not fail quietly.

Without a Chromium, on the PATH or named by CHROMIUM, nothing here is collected, and pytest says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.models import BUDGET_GB, MODELS
from tests.browser.watched import Watched
from tests.harness.daemon import Daemon, daemon, registry

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--mute-audio"]
TIMEOUT_MS = 20_000


def chromium() -> str | None:
    """Where the browser is; None when there is none."""
    named = os.environ.get("CHROMIUM")
    candidates = [named] if named else NAMES
    return next((found for name in candidates if (found := shutil.which(name))), None)


CHROMIUM = chromium()
collect_ignore_glob = [] if CHROMIUM else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CHROMIUM is None:
        terminalreporter.write_line(
            "tests/browser was left out: no Chromium on the PATH, and CHROMIUM names none"
        )


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """It has every kind of model, and room for a few of them."""
    document = registry(*MODELS, budget_gb=BUDGET_GB)
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not for longer than it is needed: its event loop is in the way of asynchronous tests."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """Opens pages; what went wrong in them beyond what the test expects fails it."""
    pages = Watched(browser, TIMEOUT_MS)
    yield pages
    pages.close()
    assert pages.problems == []


@pytest.fixture
def page(watched: Watched, gateway: Daemon) -> Page:
    """The dashboard, with what the gateway said first."""
    return watched.open(gateway.url)
