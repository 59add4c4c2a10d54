"""The whole page: every gauge shows what it is given, under our names and under vLLM's."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import pytest

from gateway.metrics import Gauges, Metrics, ModelGauges
from gateway.residency import State
from tests.harness.figures import families, samples

MODEL = ModelGauges(
    model="a",
    leases=0,
    waiting=0,
    state="unloaded",
    loaded=False,
    pinned=False,
    charge_bytes=0,
    memory={"kv": 0},
    kv_limit_bytes=100,
    heartbeat_age_s=0,
    prompt_cache={"hit": 0},
    features={"hit": 0},
)
NOW = Gauges(
    budget_bytes=0,
    committed_bytes=0,
    stranded_bytes=0,
    available_bytes=0,
    overcommitted=False,
    pressure="normal",
    engines=0,
    states=tuple(State),
    pressures=("normal", "critical"),
    models=[MODEL],
    helpers={"spare": (), "tokenizer": ()},
)


def page(now: Gauges, *, aliases: bool = False) -> dict[str, float]:
    return samples(Metrics().page(now, aliases=aliases).decode())


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"budget_bytes": 5}, {"budget_bytes": 5}),
        ({"committed_bytes": 5}, {"committed_bytes": 5}),
        ({"stranded_bytes": 5}, {"stranded_bytes": 5}),
        ({"available_bytes": 5}, {"available_bytes": 5}),
        ({"overcommitted": True}, {"overcommitted": 1}),
        ({"engines": 2}, {"engines": 2}),
        ({"draining": True}, {"draining": 1}),
        ({"pressure": "critical"}, {"pressure{level=critical}": 1, "pressure{level=normal}": 0}),
        ({"helpers": {"spare": (os.getpid(),)}}, {"helper_processes{role=spare}": 1}),
        ({"helpers": {"spare": (2**22 + 1,)}}, {"helper_memory_bytes{role=spare}": 0}),
    ],
    ids=lambda value: str(value).replace(str(os.getpid()), "own"),
)
def test_what_the_gateway_shows(change: dict[str, Any], shown: dict[str, float]) -> None:
    found = page(dataclasses.replace(NOW, **change))
    assert {key: found[key] for key in shown} == shown


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"leases": 2}, {"leases{model=a}": 2, "vllm:num_requests_running{model_name=a}": 2}),
        ({"waiting": 3}, {"waiting{model=a}": 3, "vllm:num_requests_waiting{model_name=a}": 3}),
        ({"loaded": True}, {"model_loaded{model=a}": 1}),
        ({"pinned": True}, {"model_pinned{model=a}": 1}),
        ({"state": "ready"}, {"model_state{model=a,state=ready}": 1}),
        ({"charge_bytes": 5}, {"model_charge_bytes{model=a}": 5}),
        ({"kv_limit_bytes": 5}, {"model_kv_limit_bytes{model=a}": 5}),
        (
            {"memory": {"kv": 25}},
            {
                "model_memory_bytes{class=kv,model=a}": 25,
                "vllm:kv_cache_usage_perc{model_name=a}": 0.25,
            },
        ),
        (
            {"memory": {"kv": 25}, "kv_limit_bytes": 0},
            {"vllm:kv_cache_usage_perc{model_name=a}": 0},
        ),
        ({"running": 4}, {"engine_running{model=a}": 4}),
        ({"queued": 4}, {"engine_waiting{model=a}": 4}),
        ({"heartbeat_age_s": 0.5}, {"engine_heartbeat_age_seconds{model=a}": 0.5}),
        ({"prompt_cache": {"hit": 7}}, {"prompt_cache_total{event=hit,model=a}": 7}),
        ({"prompts_kept": 7}, {"prompt_cache_entries{model=a}": 7}),
        ({"prompts_on_disk_bytes": 7}, {"prompt_cache_disk_bytes{model=a}": 7}),
        ({"features": {"hit": 7}}, {"feature_cache_total{event=hit,model=a}": 7}),
        ({"features_bytes": 7}, {"feature_cache_bytes{model=a}": 7}),
    ],
    ids=str,
)
def test_what_a_model_shows(change: dict[str, Any], shown: dict[str, float]) -> None:
    before = page(NOW, aliases=True)
    model = dataclasses.replace(MODEL, **change)
    found = page(dataclasses.replace(NOW, models=[model]), aliases=True)
    assert {key: found[key] for key in shown} == shown
    assert {key: before.get(key) for key in shown} != shown or 0 in shown.values()


def test_a_model_without_an_engine_has_no_heartbeat() -> None:
    model = dataclasses.replace(MODEL, heartbeat_age_s=None)
    found = page(dataclasses.replace(NOW, models=[model]))
    assert not [key for key in found if key.startswith("engine_heartbeat")]


def test_the_gateways_own_process_is_shown() -> None:
    found = page(NOW)
    assert found["process_start_time_seconds"] > 1.7e9
    assert found["process_resident_memory_bytes"] > 2**20
    assert found["process_virtual_memory_bytes"] > found["process_resident_memory_bytes"]
    assert 0 < found["process_open_fds"] <= found["process_max_fds"]
    assert found["process_cpu_seconds_total"] > 0


def test_vllms_names_add_up_what_ours_tell_apart() -> None:
    metrics = Metrics()
    for route, seconds in (("/v1/chat/completions", 0.4), ("/v1/messages", 40)):
        metrics.answered(route, "a", "200", seconds)
    metrics.answered("/v1/messages", "b", "200", 1)
    metrics.tokens.labels("a", "prompt").inc(10)
    metrics.tokens.labels("a", "completion").inc(20)
    metrics.time_to_first_token.labels("a").observe(0.2)
    metrics.calls_ended.labels("a", "preempted").inc()
    metrics.calls_ended.labels("a", "draining").inc()
    plain = samples(metrics.page(NOW).decode())
    assert not [key for key in plain if key.startswith("vllm")]
    found = families(metrics.page(NOW, aliases=True).decode())
    latency = found["vllm:e2e_request_latency_seconds"]
    assert latency.kind == "histogram"
    name = latency.name
    assert latency.series[f"{name}_count{{model_name=a}}"] == 2
    assert latency.series[f"{name}_sum{{model_name=a}}"] == pytest.approx(40.4)
    assert latency.series[f"{name}_bucket{{le=0.5,model_name=a}}"] == 1
    assert latency.series[f"{name}_bucket{{le=+Inf,model_name=a}}"] == 2
    assert latency.series[f"{name}_count{{model_name=b}}"] == 1
    assert found["vllm:prompt_tokens_total"].series == {
        "vllm:prompt_tokens_total{model_name=a}": 10
    }
    generated = found["vllm:generation_tokens_total"]
    assert (generated.kind, set(generated.series.values())) == ("counter", {20})
    assert set(found["vllm:num_preemptions_total"].series.values()) == {1}
    first = found["vllm:time_to_first_token_seconds"]
    assert first.series["vllm:time_to_first_token_seconds_bucket{le=0.25,model_name=a}"] == 1


def test_the_page_of_many_models_is_bounded() -> None:
    """Every series that 64 busy models have, on three routes, with three ways to be refused."""
    metrics = Metrics()
    models = [f"model-{number}" for number in range(64)]
    for name in models:
        for route in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            for code in ("200", "no_capacity", "client_gone", "cancelled"):
                metrics.answered(route, name, code, 1)
        for metric in metrics._by_model:
            labels = [name if label == "model" else "x" for label in metric._labelnames]
            metric.labels(*labels)
    now = dataclasses.replace(NOW, models=[dataclasses.replace(MODEL, model=m) for m in models])
    data = metrics.page(now, aliases=True)
    assert data.count(b"\n") < 30_000
    assert len(data) < 3 * 2**20
    assert "_created" not in data.decode()


def test_pages_can_be_written_while_series_come() -> None:
    metrics, over, failed = Metrics(), threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            while not over.is_set():
                metrics.page(NOW, aliases=True)
        except BaseException as error:  # noqa: BLE001  the test fails with it
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    for number in range(20):
        metrics.know({f"m{number}"})
        metrics.answered("/route", f"m{number}", "200", 1)
        metrics.loaded_for(f"m{number}", "reading weights", 1)
        metrics.forget_others({f"m{number - 1}"})
    over.set()
    thread.join(60)
    assert not failed
    assert not thread.is_alive()
