"""The reader of dashboards finds what is wrong with a query: the test of ours depends on it."""

from __future__ import annotations

import pytest

from tests.harness.dashboards import Query

PAGE = {
    "up": set[str](),
    "requests_total": {"model", "code"},
    "seconds_bucket": {"model", "le"},
    "vllm:tokens_total": {"model_name"},
}


@pytest.mark.parametrize(
    ("text", "legend"),
    [
        ("up", ""),
        ('sum by (model) (rate(requests_total{model=~"$model"}[$__rate_interval]))', "{{model}}"),
        ("sum(requests_total) without (code) / on (model) requests_total", ""),
        ('requests_total{code!~"[1-3]..", model="a by (b) {c}"} > bool 3', "{{code}} {{model}}"),
        ("histogram_quantile(0.95, sum by (le) (rate(seconds_bucket[5m] offset 1h)))", ""),
        ("sum(vllm:tokens_total) or vector(0) unless up == 1e3", ""),
        ("time() - max(up)", ""),
    ],
)
def test_good_queries(text: str, legend: str) -> None:
    assert list(Query("panel", text, legend).faults(PAGE)) == []


@pytest.mark.parametrize(
    ("text", "legend", "fault"),
    [
        ("request_total", "", "there is no request_total"),
        ("rate(seconds[5m])", "", "there is no seconds"),
        ("requests_total and down", "", "there is no down"),
        ('up{model="a"}', "", "up has no label model"),
        ("sum by (route) (requests_total)", "", "no label route"),
        ("requests_total", "{{route}}", "no label route"),
        ("time()", "", "reads nothing"),
    ],
)
def test_bad_queries(text: str, legend: str, fault: str) -> None:
    (found,) = Query("panel", text, legend).faults(PAGE)
    assert fault in found
