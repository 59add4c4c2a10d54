"""The longest silence in one model's stream while two other models take in 8,000 tokens each.

Three engine processes share the machine, with prefill slots and without. Two take in prompts,
because slots are about how many do so at the same time: a single one has its turn at once. The gap
is compared with what the stream shows while nothing else runs.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.bench.report import Line
from tests.fixtures.make_models import random_micro
from tests.harness.daemon import daemon, registry

PROMPT_TOKENS = 8000
DECODING, PREFILLING = "decoding", ("first", "second")
STREAM_TOKENS = 30_000
"""More than are said while the prompts are taken in; the stream is left before its end."""

ROUNDS = 2
ALONE_S = 1.5
TIMEOUT_S = 300.0


def lines(folder: Path) -> Iterator[Line]:
    model = str(random_micro(folder))
    entries = [{"name": name, "path": model} for name in (DECODING, *PREFILLING)]
    for slots, words in ((1, "slots on"), (0, "slots off")):
        document = registry(*entries, prefill_slots=slots)
        with daemon(document, folder / f"slots-{slots}") as gateway:
            rounds = [asyncio.run(_round(gateway.url, seed)) for seed in range(ROUNDS)]
        alone, beside, seconds = (statistics.mean(column) for column in zip(*rounds, strict=True))
        if slots:
            yield Line("longest gap between tokens, alone", 1000 * alone, "ms")
        what = f"beside two prefills of {PROMPT_TOKENS:,} tokens, {words}"
        yield Line(f"longest gap between tokens, {what}", 1000 * beside, "ms")
        yield Line(f"both prefills done, {words}", seconds, "s")


async def _round(url: str, seed: int) -> tuple[float, float, float]:
    """The longest gap alone and beside the prefills, and how long these took, in seconds."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        for name in PREFILLING:  # both are loaded before anything is measured
            await _prefill(client, name, f"{seed} hello")
        stream = _Stream()
        streaming = asyncio.create_task(stream.read(client))
        await stream.flowing.wait()
        alone = await stream.longest_gap(asyncio.sleep(ALONE_S))
        began = time.perf_counter()
        prompts = (f"{seed} {name}" + " word" * PROMPT_TOKENS for name in PREFILLING)
        prefills = (_prefill(client, *pair) for pair in zip(PREFILLING, prompts, strict=True))
        beside = await stream.longest_gap(asyncio.gather(*prefills))
        seconds = time.perf_counter() - began
        if streaming.done():
            raise RuntimeError("the stream ended before the prompts were taken in")
        streaming.cancel()
        await asyncio.wait([streaming])
    return alone, beside, seconds


async def _prefill(client: httpx.AsyncClient, model: str, prompt: str) -> None:
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    (await client.post("/v1/completions", json=body)).raise_for_status()


class _Stream:
    """One endless answer, read as it comes."""

    def __init__(self) -> None:
        self.flowing = asyncio.Event()
        self._last = 0.0
        self._longest = 0.0

    async def read(self, client: httpx.AsyncClient) -> None:
        body = {
            "model": DECODING,
            "prompt": "Tell me a long story about the sea.",
            "stream": True,
            "max_tokens": STREAM_TOKENS,
            "temperature": 0,
        }
        async with client.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if '"text":' in line:
                    self._seen()

    async def longest_gap(self, while_: Any) -> float:
        """Of the silences that end, or are on, while something else is awaited."""
        self._longest, self._last = 0.0, time.perf_counter()
        await while_
        self._seen()
        return self._longest

    def _seen(self) -> None:
        now = time.perf_counter()
        self._longest, self._last = max(self._longest, now - self._last), now
        self.flowing.set()
