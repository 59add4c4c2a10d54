"""Series of models are there as long as their models are."""

from __future__ import annotations

from gateway.metrics import NO_MODEL, Metrics


def test_series_of_models_that_are_gone_are_dropped() -> None:
    metrics = Metrics()
    metrics.know({"a", "gone"})
    for name in ("a", "gone", NO_MODEL):
        metrics.requests.labels("/route", name, "200").inc()
        metrics.request_seconds.labels("/route", name).observe(1)
        metrics.evictions.labels(name, "ttl").inc()
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
