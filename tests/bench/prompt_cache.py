"""Time to the first token of a prompt whose beginning was seen before, over that of a new one.

A real model behind the whole gateway. Prompts share a system prompt of over 1,000 tokens and end
in questions of their own; each round has a system prompt that nobody has seen.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from demo.models import Cache
from tests.bench.report import Line, at_most
from tests.harness.daemon import POLL_S, daemon, registry

MODEL = "smollm2-135m-f32"
SHARED = "Rule {number} of the house is to be brief and to be kind to whoever asks. "
RULES = 60
ROUNDS = 3
TIMEOUT_S = 300.0
MOST = 0.2


def lines(folder: Path) -> Iterator[Line]:
    entry = {
        "name": MODEL,
        "path": str(Cache().ensure([MODEL])[MODEL]),
        "prompt_cache_gb": 1,
        "prompt_cache_disk_gb": 1,
    }
    environment = {"XDG_CACHE_HOME": str(folder / "cache")}
    with (
        daemon(registry(entry), folder / "gateway", environment) as gateway,
        httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client,
    ):
        _first_token(client, "Hello.", "Hello.")  # pays for the load
        rounds = [_round(client, seed) for seed in range(ROUNDS)]
    cold, warm, disk = (statistics.median(column) for column in zip(*rounds, strict=True))
    yield Line("time to first token, 1,000 tokens never seen", 1000 * cold, "ms")
    yield Line("the same, seen before", 1000 * warm, "ms")
    yield at_most("seen before over never seen", warm / cold, "x", MOST)
    yield Line("the same, by an earlier process (from disk)", 1000 * disk, "ms")
    yield at_most("from disk over never seen", disk / cold, "x", MOST)


def _round(client: httpx.Client, seed: int) -> tuple[float, float, float]:
    """Seconds: cold, seen before, and seen by a process that is gone."""
    shared = f"House {seed}. " + "".join(SHARED.format(number=n) for n in range(RULES))
    cold = _first_token(client, shared, "What is the capital of France?")
    warm = _first_token(client, shared, "Name a colour that you like.")
    _reload(client)
    _first_token(client, "Hello.", "Hello.")  # the first step of a process is a slow one
    return cold, warm, _first_token(client, shared, "Is it late?")


def _first_token(client: httpx.Client, system: str, question: str) -> float:
    """Seconds from the request to the first text."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ],
        "max_tokens": 2,
        "temperature": 0,
        "stream": True,
    }
    began, first = time.perf_counter(), None
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if first is None and '"content":"' in line and '"content":""' not in line:
                first = time.perf_counter() - began
    if first is None:
        raise RuntimeError("the model said nothing")
    return first


def _reload(client: httpx.Client) -> None:
    client.post(f"/v1/models/{MODEL}/unload").raise_for_status()
    deadline = time.monotonic() + TIMEOUT_S
    while _state(client) != "unloaded":
        if time.monotonic() > deadline:
            raise RuntimeError("the model does not leave")
        time.sleep(POLL_S)
    client.post(f"/v1/models/{MODEL}/load", params={"wait": "true"}).raise_for_status()


def _state(client: httpx.Client) -> str:
    (model,) = client.get("/v1/cache/stats").json()["models"]
    return str(model["state"])
