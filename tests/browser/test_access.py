"""For everybody: by keyboard, on a phone, in the dark, without motion."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.watched import Watched
from tests.harness.daemon import Daemon

PLACES = (
    *("#overview", "#activity"),
    *("#chat", "#embeddings", "#rerank", "#transcription", "#speech"),
)
MAX_TABS = 80
PHONE: ViewportSize = {"width": 340, "height": 700}

FOCUSED = """() => {
    const element = document.activeElement;
    const style = getComputedStyle(element);
    const words = element.getAttribute("aria-label") || element.textContent.trim();
    return [words, element.matches("main") || parseFloat(style.outlineWidth) >= 2];
}"""

POOR_CONTRAST = """() => {
    const channel = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) =>
        0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        throw new Error("the page has no background");
    };
    const poor = [];
    let looked = 0;
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!own || !element.checkVisibility() || element.closest(":disabled, .unseen")) continue;
        looked += 1;
        const [a, b] = [parse(getComputedStyle(element).color), ground(element)].map(luminance);
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push(`${element.textContent.trim()}: ${ratio.toFixed(2)}`);
    }
    return [looked, poor];
}"""


def focused(page: Page) -> str:
    """What the focus is on; fails where it cannot be seen."""
    words, visible = page.evaluate(FOCUSED)
    assert visible, f"the focus on {words!r} cannot be seen"
    return str(words)


def tab_to(page: Page, words: str) -> None:
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        if focused(page) == words:
            return
    raise AssertionError(f"Tab never came to {words!r}")


def test_by_keyboard_alone(page: Page) -> None:
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to content"
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    tab_to(page, "Load vectors")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Unload vectors")).to_be_focused()
    expect(page.locator("#model-said")).to_have_text("vectors is ready.")
    page.keyboard.press("Enter")
    expect(page.locator("#model-said")).to_have_text("vectors is unloaded.")
    page.reload()
    tab_to(page, "Playground")
    page.keyboard.press("Enter")
    tab_to(page, "Chat")
    tab_to(page, "New chat")
    page.keyboard.press("Enter")
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-said")).to_have_text("The answer is complete.")


def test_every_field_and_button_has_a_name(page: Page) -> None:
    for place in PLACES:
        page.goto(page.url.partition("#")[0] + place)
        snapshot = page.locator("main").aria_snapshot()
        for role in ("button", "textbox", "combobox", "spinbutton", "checkbox", "link"):
            assert f"- {role}\n" not in snapshot, (place, role)
            assert f"- {role}:" not in snapshot, (place, role)


def test_on_a_phone_nothing_is_cut_off(watched: Watched, gateway: Daemon) -> None:
    page = watched.open(gateway.url, viewport=PHONE, is_mobile=True, has_touch=True)
    for place in PLACES:
        page.goto(f"{gateway.url}/{place}")
        expect(page.locator(f"{place}")).to_be_visible()
        # Not `innerWidth`: a phone makes room for what is too wide by showing all of it smaller.
        assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"], place


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out(
    watched: Watched, gateway: Daemon, scheme: Literal["light", "dark"]
) -> None:
    page = watched.open(gateway.url, color_scheme=scheme)
    grounds = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, grounds[4:-1].split(","))) < 384) == (scheme == "dark")
    for place in PLACES:
        page.goto(f"{gateway.url}/{place}")
        expect(page.locator(f"{place}")).to_be_visible()
        looked, poor = page.evaluate(POOR_CONTRAST)
        assert looked > 5
        assert poor == [], place


def test_nothing_moves_for_who_wants_that(watched: Watched, gateway: Daemon) -> None:
    page = watched.open(gateway.url, reduced_motion="reduce")
    expect(page.locator("#models > li").first).to_be_visible()
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter((each) => "
        "parseFloat(getComputedStyle(each).transitionDuration) > 0).length"
    )
    assert moving == 0
