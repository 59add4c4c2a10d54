"""The chat: streams, stops, thinks, calls, looks."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from playwright.sync_api import Page, Request, expect

from tests.browser.models import FORGED
from tests.browser.watched import Watched
from tests.harness.daemon import Daemon, reply, script

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
TOOL = {"name": "weather", "parameters": {"type": "object"}}


def png() -> bytes:
    """One black pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 4)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def opened(page: Page, model: str) -> Page:
    page.goto(page.url.partition("#")[0] + "#chat")
    page.get_by_role("combobox", name="Model").select_option(model)
    return page


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def bodies(page: Page) -> list[dict[str, Any]]:
    """What is sent to be answered from now on."""
    sent: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/v1/chat/completions"):
            sent.append(json.loads(request.post_data or "{}"))

    page.on("request", note)
    return sent


def expect_done(page: Page) -> None:
    expect(page.locator("#chat-said")).to_have_text("The answer is complete.")


def test_a_conversation(page: Page) -> None:
    opened(page, "writer")
    sent = bodies(page)
    page.get_by_text("Options").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    send(page, "Hello")
    answer = page.locator("#chat-log .assistant .text")
    expect(answer).to_have_text(reply(40).strip())
    expect_done(page)
    expect(page.locator("#chat-log .assistant")).to_contain_text("40 out")
    send(page, "And now?")
    expect(answer).to_have_count(2)
    expect_done(page)
    assert [message["role"] for message in sent[1]["messages"]] == [
        *("system", "user", "assistant", "user")
    ]
    assert sent[1]["temperature"] == 0.5
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#chat-log > li")).to_have_count(0)


def test_an_answer_streams_and_is_stopped(page: Page) -> None:
    opened(page, "slow")
    send(page, "Hello")
    expect(page.locator("#chat-log .assistant .text")).to_contain_text("word2")
    expect(page.locator("#chat-said")).to_have_text("Answering.")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#chat-said")).to_have_text("Stopped.")
    expect(page.locator("#chat-log .assistant")).to_contain_text("stopped")
    expect(page.get_by_label("Message")).to_be_focused()
    page.goto(page.url.partition("#")[0] + "#overview")
    expect(page.locator("#requests-note")).to_be_visible()


def test_reasoning_is_folded_and_markup_stays_text(page: Page) -> None:
    opened(page, "thinker")
    send(page, f"Look: {FORGED}")
    expect_done(page)
    answer = page.locator("#chat-log .assistant")
    expect(answer.get_by_text("Let me see.")).to_be_hidden()
    answer.get_by_text("Reasoning").click()
    expect(answer.get_by_text("Let me see.")).to_be_visible()
    expect(answer.locator(".text")).to_contain_text(f"Bold words: {FORGED} and <b>no more</b>.")
    expect(page.locator("#chat-log .user .text")).to_have_text(f"Look: {FORGED}")
    expect(page.locator("#chat-log img, #chat-log .text *")).to_have_count(0)
    expect(page).to_have_title("mlx-gateway")


def test_tool_calls_are_shown_and_their_results_sent(page: Page) -> None:
    opened(page, "thinker")
    sent = bodies(page)
    page.get_by_text("Options").click()
    page.get_by_label("Tools, as JSON").fill(json.dumps(TOOL))
    send(page, script(CALL))
    expect_done(page)
    expect(page.locator(".call")).to_contain_text('calls weather{"city": "Bergen"}')
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#chat-log .assistant")).to_have_count(2)
    expect_done(page)
    said, result = sent[1]["messages"][-2:]
    assert said["tool_calls"][0]["function"]["name"] == "weather"
    assert (result["role"], result["content"]) == ("tool", "rain")
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]
    page.get_by_label("Tools, as JSON").fill("{")
    send(page, "Again")
    expect(page.locator("#chat-said")).to_contain_text("The tools are no JSON")
    expect(page.get_by_label("Message")).to_have_value("Again")


def test_images_are_chosen_pasted_and_dropped(page: Page) -> None:
    opened(page, "seer")
    sent = bodies(page)
    page.get_by_label("Add images").set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": png()}
    )
    for kind, member in (("paste", "clipboardData"), ("drop", "dataTransfer")):
        page.evaluate(
            """([kind, member, bytes]) => {
                const data = new DataTransfer();
                const file = [[new Uint8Array(bytes)], `${kind}.png`, {type: "image/png"}];
                data.items.add(new File(...file));
                const event = new Event(kind, {bubbles: true, cancelable: true});
                Object.defineProperty(event, member, {value: data});
                document.getElementById("chat-text").dispatchEvent(event);
            }""",
            [kind, member, list(png())],
        )
    expect(page.locator("#chat-images img")).to_have_count(3)
    page.get_by_role("button", name="Remove drop.png").click()
    send(page, "What is this?")
    expect(page.locator("#chat-log .assistant .text")).to_have_text("A picture.")
    *images, text = sent[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert len(images) == 2
    assert images[0]["image_url"]["url"].startswith("data:image/png;base64,")
    page.get_by_role("combobox", name="Model").select_option("thinker")
    expect(page.get_by_label("Add images")).to_be_hidden()


def test_an_error_is_told(page: Page, watched: Watched, gateway: Daemon) -> None:
    watched.expected.add("status of 503")
    opened(page, "broken")
    send(page, "Hello")
    expect(page.locator("#chat-said")).to_contain_text("fail")
    expect(page.locator("#chat-said")).to_have_attribute("data-tone", "bad")
    opened(page, "thinker")
    page.get_by_role("button", name="New chat").click()
    send(page, script("half", {"raise": "it broke"}))
    expect(page.locator("#chat-said")).to_contain_text("it broke")
