"""The overview: memory, models with what can be done to them, requests."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.models import FORGED
from tests.browser.watched import Watched
from tests.harness.daemon import POLL_S, WAIT_TIMEOUT_S, Daemon, chat_body

HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture(autouse=True)
def at_rest(gateway: Daemon) -> None:
    """No model in memory, whatever tests before have asked for."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    with httpx.Client(base_url=gateway.url, timeout=WAIT_TIMEOUT_S) as client:
        while True:
            models = client.get("/v1/status").json()["models"]
            loaded = [each["name"] for each in models if each["charge_bytes"]]
            if not loaded:
                return
            assert time.monotonic() < deadline, f"these stay: {loaded}"
            for name in loaded:
                client.post(f"/v1/models/{name}/unload").raise_for_status()
            time.sleep(POLL_S)


def ask(gateway: Daemon, model: str) -> httpx.Response:
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=chat_body(model), timeout=WAIT_TIMEOUT_S)


def card(page: Page, name: str) -> Locator:
    heading = page.get_by_role("heading", name=name, exact=True)
    return page.locator("#models > li").filter(has=heading)


def expect_state(page: Page, name: str, state: str) -> None:
    expect(card(page, name).locator(".pill")).to_have_text(state)


def unload(page: Page, name: str) -> None:
    card(page, name).get_by_role("button", name=f"Unload {name}").click()
    expect_state(page, name, "unloaded")


def test_it_shows_every_model_and_the_budget(page: Page) -> None:
    expect(page).to_have_title("mlx-gateway")
    expect(page.locator("#models > li")).to_have_count(12)
    expect(page.locator("#memory-sum")).to_contain_text("of 10.0 GB committed")
    expect(card(page, "seer")).to_contain_text("vision")


def test_a_model_is_loaded_pinned_and_unloaded(page: Page) -> None:
    vectors = card(page, "vectors")
    vectors.get_by_role("button", name="Load vectors").click()
    expect_state(page, "vectors", "ready")
    expect(page.locator("#memory-legend")).to_contain_text("vectors205 MB: weights 205 MB")
    expect(page.locator("#memory-bar .block")).to_have_count(1)
    vectors.get_by_role("button", name="Pin vectors").click()
    expect(vectors).to_contain_text("pinned")
    vectors.get_by_role("button", name="Unpin vectors").click()
    expect(vectors.get_by_role("button", name="Pin vectors")).to_be_visible()
    unload(page, "vectors")
    expect(page.locator("#memory-bar .block")).to_have_count(0)


def test_a_swap_is_watched(page: Page, gateway: Daemon) -> None:
    """Two models, and room for one of them."""
    card(page, "writer").get_by_role("button", name="Load writer").click()
    expect(card(page, "writer").get_by_role("progressbar")).to_be_visible()
    expect_state(page, "writer", "ready")
    asking = threading.Thread(target=ask, args=(gateway, "rival"))
    asking.start()
    expect(card(page, "rival").get_by_role("progressbar")).to_be_visible()
    expect_state(page, "rival", "ready")
    expect_state(page, "writer", "unloaded")
    expect(card(page, "writer")).to_contain_text("1 eviction")
    expect(page.locator("#memory-legend")).to_contain_text("rival")
    expect(page.locator("#memory-legend")).not_to_contain_text("writer")
    asking.join()
    unload(page, "rival")


def test_a_refusal_is_shown_where_it_was_asked_for(
    page: Page, watched: Watched, gateway: Daemon
) -> None:
    broken = card(page, "broken")
    broken.get_by_role("button", name="Load broken").click()
    expect_state(page, "broken", "failed")
    expect(broken).to_contain_text("fail_loads makes load number")
    watched.expected.add("status of 404")
    page.route(
        "**/v1/models/*/load", lambda route: route.continue_(url=f"{gateway.url}/v1/no/load")
    )
    broken.get_by_role("button", name="Load broken").click()
    expect(broken.get_by_role("alert")).to_contain_text("there is nothing at /v1/no/load")


def test_a_pin_of_the_registry_stays(page: Page) -> None:
    fixed = card(page, "fixed")
    fixed.get_by_role("button", name="Unpin fixed").click()
    expect(fixed.get_by_role("alert")).to_contain_text("The registry pins it")


def test_memory_by_class_and_what_is_stranded(page: Page) -> None:
    gib = 2**30
    measured = {"weights": 2 * gib, "kv": gib, "prompt_cache": gib, "mlx_cache": 0}

    def answer(route: Route) -> None:
        status = route.fetch().json()
        model = next(each for each in status["models"] if each["name"] == "vectors")
        model |= {"charge_bytes": 5 * gib, "measured": measured}
        status["memory"] |= {"committed_bytes": 5 * gib, "stranded_bytes": gib}
        status["memory"] |= {"overcommitted": "more is used than there is"}
        route.fulfill(json=status)

    page.route("**/v1/status", answer)
    words = "weights 2.0 GB · context 1.0 GB · prompt cache 1.0 GB · kept for it 1.0 GB"
    expect(page.locator("#memory-legend li")).to_have_text([f"vectors5.0 GB: {words}"])
    expect(page.locator("#memory-sum")).to_contain_text("1.0 GB stranded")
    expect(page.locator("#memory-note")).to_have_text("more is used than there is")
    parts = page.locator("#memory-bar .block span")
    expect(parts).to_have_count(4)
    page.wait_for_function(
        "Math.abs(document.querySelector('#memory-bar .block').offsetWidth /"
        " document.querySelector('#memory-bar').offsetWidth - 0.5) < 0.01"
    )
    widths = parts.evaluate_all("parts => parts.map((part) => part.offsetWidth)")
    assert [round(width / widths[1]) for width in widths] == [2, 1, 1, 1]
    bar, stranded = page.locator("#memory-bar"), page.locator("#memory-bar .stranded")
    assert _width(stranded) == pytest.approx(_width(bar) / 10, abs=2)
    page.unroute("**/v1/status", answer)


def _width(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["width"]


def test_who_does_not_look_asks_nothing(page: Page) -> None:
    asked: list[str] = []
    page.clock.install()
    page.reload()
    expect(page.locator("#state")).to_have_text("running")
    page.evaluate(HIDE, True)
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(60_000)
    assert asked == []
    with page.expect_request("**/v1/status"):
        page.evaluate(HIDE, False)


def test_requests_are_listed_and_ended(page: Page, gateway: Daemon) -> None:
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(ask(gateway, "slow")))
    asking.start()
    line = page.locator("#requests > li")
    expect(line).to_contain_text("/v1/chat/completions")
    expect(line).to_contain_text("first token after")
    line.get_by_role("button").click()
    expect(line).to_have_count(0)
    asking.join()
    assert answers[0].json()["error"]["code"] == "cancelled"
    expect(page.locator("#requests-note")).to_be_visible()


def test_what_a_registry_says_stays_text(page: Page) -> None:
    expect(card(page, "thinker")).to_contain_text(f"{FORGED} thinks first")
    forged = card(page, FORGED)
    forged.get_by_role("button", name="Load").click()
    expect_state(page, FORGED, "ready")
    expect(page.locator("#memory-legend")).to_contain_text(FORGED)
    expect(page.locator("#model-said")).to_have_text(f"{FORGED} is ready.")
    expect(page.locator("main img")).to_have_count(0)
    expect(page).to_have_title("mlx-gateway")
