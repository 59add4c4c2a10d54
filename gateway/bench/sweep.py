"""Prompt sweeps: every set of prompts at every concurrency, one after the other."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.bench.client import Client, Sample
from gateway.bench.prompts import prompt
from gateway.bench.scrape import Scrape, difference, scrape
from gateway.bench.stats import Summary, summary


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. Each point sends `repetitions` requests for each of its streams."""

    model: str
    prompts: tuple[str, ...] = ("short", "medium", "long")
    concurrency: tuple[int, ...] = (1, 4)
    thinking: tuple[bool | None, ...] = (None,)
    repetitions: int = 3
    max_tokens: int = 256
    seed: int = 0
    system: str | None = None
    metrics: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """One combination and what was seen; `metrics` are the server's counters, as differences."""

    prompts: str
    concurrency: int
    thinking: bool | None
    summary: Summary
    samples: tuple[Sample, ...]
    metrics: dict[str, float]


Progress = Callable[[str], None]


async def sweep(client: Client, plan: Plan, progress: Progress, points: list[Point]) -> None:
    """Appends each point to `points` as soon as it is there. Raises `Unreachable`."""
    await client.chat(_body(plan, "short", -1, plan.thinking[0]))  # the load is not measured
    combinations = itertools.product(plan.prompts, plan.thinking, plan.concurrency)
    numbers = itertools.count()
    for name, thinking, streams in combinations:
        progress(f"{name}, {streams} at a time")
        bodies = [
            _body(plan, name, next(numbers), thinking) for _ in range(streams * plan.repetitions)
        ]
        before = await scrape(client) if plan.metrics else Scrape()
        began = time.monotonic()
        samples = await together(client, bodies, streams)
        wall_s = time.monotonic() - began
        after = await scrape(client) if plan.metrics else Scrape()
        figures = summary(samples, wall_s)
        points.append(
            Point(name, streams, thinking, figures, tuple(samples), difference(before, after))
        )


async def together(client: Client, bodies: Sequence[dict[str, Any]], streams: int) -> list[Sample]:
    """Every request, so many at a time, in the order of `bodies`."""
    waiting = iter(enumerate(bodies))
    samples: dict[int, Sample] = {}

    async def stream() -> None:
        for number, body in waiting:
            samples[number] = await client.sample(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(streams, len(bodies))):
            group.create_task(stream())
    return [samples[number] for number in sorted(samples)]


def _body(plan: Plan, name: str, number: int, thinking: bool | None) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt(name, number, plan.seed)}]
    if plan.system is not None:
        messages.insert(0, {"role": "system", "content": plan.system})
    body = {"model": plan.model, "messages": messages, "max_tokens": plan.max_tokens}
    body |= {"temperature": 0, "seed": plan.seed}
    return body if thinking is None else body | {"enable_thinking": thinking}
