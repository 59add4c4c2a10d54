"""Embeddings, rerank, transcription and speech."""

from __future__ import annotations

import io
import json
import wave

from playwright.sync_api import Page, expect


def opened(page: Page, kind: str) -> Page:
    page.goto(page.url.partition("#")[0] + f"#{kind}")
    return page


def silence() -> bytes:
    """A second of it, as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(16_000))
    return file.getvalue()


def test_embeddings(page: Page) -> None:
    opened(page, "embeddings")
    page.get_by_role("textbox", name="Text", exact=True).fill("a cat")
    page.get_by_label("A second text").fill("a cat")
    page.get_by_role("button", name="Embed").click()
    expect(page.locator("#embeddings-out")).to_contain_text("Dimensions 64")
    expect(page.locator("#embeddings-out")).to_contain_text("Cosine of the two 1.0000")
    page.get_by_label("A second text").fill("trains run late")
    page.get_by_role("button", name="Embed").click()
    expect(page.locator("#embeddings-out")).not_to_contain_text("1.0000")


def test_rerank(page: Page) -> None:
    opened(page, "rerank")
    page.get_by_label("Question").fill("late trains")
    page.get_by_label("Documents").fill("cats sleep\n\nlate trains\nlate cats")
    page.get_by_role("button", name="Rank").click()
    ranked = page.locator("#rerank-out > li")
    expect(ranked).to_have_text(["1.000late trains", "0.500late cats", "0.000cats sleep"])


def test_transcription(page: Page) -> None:
    opened(page, "transcription")
    page.get_by_label("Audio file").set_input_files(
        {"name": "a.wav", "mimeType": "audio/wav", "buffer": silence()}
    )
    page.get_by_role("button", name="Transcribe").click()
    expect(page.locator("#transcription-out")).to_have_text("What was said.")
    expect(page.locator("#transcription-said")).to_have_text("The transcription is complete.")


def test_speech(page: Page) -> None:
    opened(page, "speech")
    page.get_by_role("textbox", name="Text", exact=True).fill("Good morning.")
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#speech-said")).to_contain_text("KB after")
    page.wait_for_function("document.querySelector('audio').duration > 0.1")
    page.get_by_label("Voice").select_option("bass")
    with page.expect_request("**/v1/audio/speech") as asked:
        page.get_by_role("button", name="Speak").click()
    assert json.loads(asked.value.post_data or "{}")["voice"] == "bass"
    expect(page.locator("#speech-said")).to_contain_text("KB after")
