"""Counters and histograms: their series come and go with models, and their buckets fit."""

from __future__ import annotations

import logging

import pytest

from gateway.metrics import NO_MODEL, Metrics
from gateway.metrics.series import MOST_STAGES, OTHER
from tests.harness.figures import families, samples


def test_series_of_models_that_are_gone_are_dropped() -> None:
    metrics = Metrics()
    metrics.know({"a", "gone"})
    for name in ("a", "gone", NO_MODEL):
        metrics.answered("/route", name, "200", 1)
        metrics.evictions.labels(name, "ttl").inc()
        metrics.in_flight.labels(name).inc()
        metrics.loaded_for(name, "reading weights", 1)
    metrics.forget_others({"a"})
    page = metrics.page().decode()
    assert 'model="gone"' not in page
    for name in ("a", NO_MODEL):
        assert f'requests_total{{code="200",model="{name}",route="/route"}} 1.0' in page

    metrics.loads.labels("gone").inc()  # a straggler
    metrics.forget_others({"a"})
    assert 'model="gone"' not in metrics.page().decode()

    metrics.know({"gone"})  # it is back
    metrics.loads.labels("gone").inc()
    metrics.forget_others({"a", "gone"})
    assert 'model_loads_total{model="gone"} 1.0' in metrics.page().decode()


@pytest.mark.parametrize(
    ("outcome", "moved"),
    [
        ("200", set()),
        ("no_capacity", set()),
        ("client_gone", {"client_disconnects_total{model=a}"}),
        ("client_too_slow", {"cancels_total{model=a,reason=too_slow}"}),
        ("cancelled", {"cancels_total{model=a,reason=asked}"}),
        ("timeout", {"cancels_total{model=a,reason=timeout}"}),
    ],
)
def test_requests_that_end_early_are_counted_by_why(outcome: str, moved: set[str]) -> None:
    metrics = Metrics()
    metrics.answered("/route", "a", outcome, 1)
    found = {key: value for key, value in samples(metrics.page().decode()).items() if value}
    assert found.pop(f"requests_total{{code={outcome},model=a,route=/route}}") == 1
    assert found["request_duration_seconds_count{model=a,route=/route}"] == 1
    assert {key for key in found if not key.startswith("request_duration")} == moved


def test_stages_have_a_bounded_number_of_names() -> None:
    metrics = Metrics()
    for number in range(10 * MOST_STAGES):
        metrics.loaded_for("a", f"stage {number}", 2)
    found = families(metrics.page().decode())["mlx_gateway_model_load_stage_seconds_total"]
    assert len(found.series) == MOST_STAGES + 1
    other = f"mlx_gateway_model_load_stage_seconds_total{{model=a,stage={OTHER}}}"
    assert found.series[other] == 2 * 9 * MOST_STAGES


def test_lines_that_files_lose_are_counted_once() -> None:
    metrics, lost = Metrics(), 3
    logger = logging.Logger("of its own")
    handler = logging.Handler()
    logger.addHandler(handler)
    metrics.count_lost_lines(logger, lambda: lost)
    handler.handleError(logging.makeLogRecord({}))
    metrics.count_lost()
    metrics.count_lost()
    lost += 2
    metrics.count_lost()
    assert samples(metrics.page().decode())["failed_writes_total{file=log}"] == 1 + 5


def quantile(found: dict[str, float], name: str, part: float) -> float:
    """As Prometheus estimates it: linear within the bucket."""
    bounds = sorted(
        (float(key.split("le=")[1].split(",")[0].rstrip("}")), value)
        for key, value in found.items()
        if key.startswith(f"{name}_bucket")
    )
    rank, low, below = part * bounds[-1][1], 0.0, 0.0
    for bound, count in bounds:
        if count >= rank:
            return low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    raise AssertionError("no bucket holds it")


@pytest.mark.parametrize(
    ("name", "seconds", "least", "most"),
    [
        ("time_to_first_token_seconds", 45, 30, 60),
        ("time_to_first_token_seconds", 0.2, 0.1, 0.25),
        ("request_duration_seconds", 400, 300, 600),
        ("inter_token_seconds", 0.012, 0.01, 0.015),
        ("inter_token_seconds", 0.0018, 0.001, 0.0025),
        ("model_load_seconds", 90, 60, 120),
        ("queue_wait_seconds", 0.0002, 0, 0.001),
        ("model_age_at_eviction_seconds", 7200, 3600, 14_400),
    ],
)
def test_quantiles_can_be_told_where_they_matter(
    name: str, seconds: float, least: float, most: float
) -> None:
    metrics = Metrics()
    metrics.request_seconds.labels("/route", "a").observe(seconds)
    for histogram in (
        *(metrics.time_to_first_token, metrics.inter_token, metrics.load_seconds),
        *(metrics.queue_wait, metrics.age_at_eviction),
    ):
        histogram.labels("a").observe(seconds)
    found = samples(metrics.page().decode())
    assert least <= quantile(found, name, 0.5) <= most
