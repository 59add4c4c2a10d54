"""Runs a workload: each case so many times, one after the other, and checks every answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.bench.client import Client, Sample, Unreachable
from gateway.bench.scrape import Scrape, difference, scrape
from gateway.bench.stats import Summary, summary
from gateway.bench.workload import Case, Checks, Workload

CHECKED_CHARACTERS = 200_000
"""Patterns see no more of an answer, so that a slow one ends."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer and what is wrong with it; `within_policy` is None without a policy."""

    sample: Sample
    problems: tuple[str, ...]
    within_policy: bool | None

    @property
    def passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class CaseResult:
    case: Case
    verdicts: tuple[Verdict, ...]
    summary: Summary
    metrics: dict[str, float]

    @property
    def failures(self) -> int:
        return sum(not verdict.passed for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class Run:
    """How a workload is run; `cache_policy` None leaves it to the workload."""

    model: str
    repetitions: int = 3
    cache_policy: str | None = None
    metrics: bool = True


def judge(checks: Checks, sample: Sample) -> tuple[str, ...]:
    """What an answer fails; nothing for a good one."""
    if sample.error is not None:
        return (f"failed: {sample.error}",)
    text = sample.text[:CHECKED_CHARACTERS]
    problems = []
    if checks.finish_reason is not None and sample.finish_reason != checks.finish_reason:
        problems.append(f"finish_reason is {sample.finish_reason}, not {checks.finish_reason}")
    problems += [
        f"lacks {each.pattern!r}" for each in checks.required_regex if not each.search(text)
    ]
    problems += [f"holds {each.pattern!r}" for each in checks.forbidden_regex if each.search(text)]
    length = len(sample.text)
    if checks.min_chars is not None and length < checks.min_chars:
        problems.append(f"has {length} characters, fewer than {checks.min_chars}")
    if checks.max_chars is not None and length > checks.max_chars:
        problems.append(f"has {length} characters, more than {checks.max_chars}")
    return tuple(problems)


async def run(
    client: Client,
    workload: Workload,
    how: Run,
    progress: Callable[[str], None],
    results: list[CaseResult],
) -> None:
    """Appends each case's result to `results` as soon as it is there.

    A server that goes away fails the cases that are left; what was seen before it stays.
    """
    policy = how.cache_policy or workload.cache_policy
    if policy == "before-run":
        await _clear(client, progress)
    for case in workload.cases:
        progress(case.id)
        if policy == "before-case":
            await _clear(client, progress)
        before = await scrape(client) if how.metrics else Scrape()
        began = time.monotonic()
        samples = [
            await client.sample({**case.body, "model": how.model}) for _ in range(how.repetitions)
        ]
        figures = summary(samples, time.monotonic() - began)
        after = await scrape(client) if how.metrics else Scrape()
        verdicts = tuple(_verdict(case, sample) for sample in samples)
        results.append(CaseResult(case, verdicts, figures, difference(before, after)))


async def _clear(client: Client, progress: Callable[[str], None]) -> None:
    try:
        status, _ = await client.delete("/v1/cache")
    except Unreachable as error:
        progress(f"the cache was not cleared: {error}")
        return
    if status >= 300:
        progress(f"the cache was not cleared: DELETE /v1/cache answers {status}")


def _verdict(case: Case, sample: Sample) -> Verdict:
    limit = case.policy_timeout_ms
    within = None if limit is None else sample.duration_s * 1000 <= limit
    return Verdict(sample, judge(case.checks, sample), within)
