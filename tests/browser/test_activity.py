"""Events and the log, and a gateway that goes away and comes back."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.browser.watched import Watched
from tests.harness.daemon import WAIT_TIMEOUT_S, Daemon, daemon, registry, scripted


def load(gateway: Daemon, name: str) -> None:
    url = f"{gateway.url}/v1/models/{name}/load?wait=true"
    headers = {"content-type": "application/json"}
    httpx.post(url, headers=headers, timeout=WAIT_TIMEOUT_S).raise_for_status()


def test_the_log_and_the_events_are_followed(page: Page, gateway: Daemon) -> None:
    page.goto(page.url.partition("#")[0] + "#activity")
    logs, events = page.locator("#logs"), page.locator("#events")
    expect(logs).to_contain_text("GET /v1/models 200")
    load(gateway, "ranker")
    expect(logs).to_contain_text("model ranker: ready after")
    expect(events).to_contain_text("ranker loading → ready: loaded")
    expect(events).to_contain_text("ranker loaded in")
    page.get_by_role("combobox", name="Model").select_option("ranker")
    expect(logs).not_to_contain_text("GET /v1/models 200")
    expect(logs).to_contain_text("model ranker: ready after")
    page.get_by_label("Level").select_option("error")
    expect(logs.locator("li")).to_have_count(0)


def test_it_says_when_the_gateway_is_gone_and_finds_it_again(
    watched: Watched, tmp_path: Path
) -> None:
    watched.expected |= {"ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY"}
    document = registry(scripted("slow", tokens_per_s=5, deltas=1000), server={"drain_s": 1})
    with daemon(document, tmp_path) as gateway:
        page = watched.open(gateway.url, "#chat")
        page.get_by_label("Message").fill("Hello")
        page.get_by_label("Message").press("Enter")
        expect(page.locator("#chat-log .assistant .text")).to_contain_text("word1")
        gateway.signal(signal.SIGTERM)
        expect(page.locator("#banner")).to_contain_text("shutting down")
        expect(page.locator("#banner")).to_contain_text("does not answer")
        expect(page.locator("#chat-said")).to_have_attribute("data-tone", "bad")
        page.get_by_role("link", name="Activity").click()
        expect(page.locator("#events")).to_contain_text("no new requests")
        expect(page.locator("#logs-note")).to_contain_text("does not answer")
        assert gateway.wait() == 0
        port = gateway.port
    with daemon(document, tmp_path, flags=["--port", str(port)]):
        expect(page.locator("#state")).to_have_text("running")
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator("#logs")).to_contain_text("GET /v1/models 200")
