"""A gateway that asks for keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.watched import Watched
from tests.harness.daemon import Daemon, daemon, registry, scripted

ROOT, GUEST = "sk-root", "sk-guest"
KEYS = [
    {"name": "root", "key": ROOT, "rights": ["infer", "manage", "admin"]},
    {"name": "guest", "key": GUEST},
]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    document = registry(scripted("a", deltas="Hello."), server={"api_keys": KEYS})
    with daemon(document, tmp_path_factory.mktemp("locked")) as running:
        yield running


def give(page: Page, key: str) -> None:
    page.get_by_role("dialog").get_by_label("Key").fill(key)
    page.get_by_role("button", name="Use it").click()


def test_a_key_is_asked_for_once(watched: Watched, locked: Daemon) -> None:
    watched.expected.add("status of 401")
    page = watched.visit(locked.url)
    expect(page.get_by_role("dialog")).to_be_visible()
    give(page, "sk-wrong")
    expect(page.get_by_role("dialog")).to_contain_text("This key is not known here.")
    give(page, ROOT)
    expect(page.locator("#state")).to_have_text("running")
    watched.expected.clear()
    page.reload()
    expect(page.locator("#state")).to_have_text("running")
    page.get_by_role("link", name="Playground").click()
    page.get_by_label("Message").fill("Hello")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#chat-log .assistant .text")).to_have_text("Hello.")
    page.get_by_role("link", name="Activity").click()
    expect(page.locator("#logs")).to_contain_text("POST /v1/chat/completions 200 model=a key=root")
    assert ROOT not in page.content()
    assert page.evaluate("localStorage.length") == 0


def test_what_a_key_may_not_do_is_told(watched: Watched, locked: Daemon) -> None:
    watched.expected |= {"status of 401", "status of 403"}
    page = watched.visit(locked.url)
    give(page, GUEST)
    expect(page.locator("#state")).to_have_text("running")
    button = page.get_by_role("button", name="oad a")
    button.click()
    expect(page.locator("#models").get_by_role("alert")).to_contain_text("no right to manage")
    page.get_by_role("link", name="Activity").click()
    expect(page.locator("#logs-note")).to_contain_text("no right to admin")
    expect(page.locator("#events-note")).to_contain_text("no right to admin")


def test_without_a_key_the_page_waits(watched: Watched, locked: Daemon) -> None:
    watched.expected.add("status of 401")
    page = watched.visit(locked.url)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#banner")).to_have_text("This gateway asks for a key.")
    page.get_by_role("button", name="Key", exact=True).click()
    give(page, ROOT)
    expect(page.locator("#banner")).to_be_hidden()
