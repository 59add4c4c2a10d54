"""Models of every kind live under the same leases, budget and eviction, and each keeps to its own.

The models are scripted; `tests/real/test_kinds.py` does the same with real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, registry
from tests.harness.forms import wav
from tests.harness.kinds import BUDGET_GB, SCRIPTED, scripted_questions
from tests.harness.mixed import Clients, emptied, plan
from tests.harness.observe import GIB

pytestmark = pytest.mark.anyio

SEED = 6
VISITS = 56
PER_S = 5.0


# --- a mixed load ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        {"strategy": "wait_then_fail", "wait_timeout_s": 90},
        {"strategy": "preempt", "wait_timeout_s": 90},
    ],
    ids=lambda policy: str(policy["strategy"]),
)
async def test_a_mixed_load_runs_clean(policy: dict[str, Any], tmp_path: Path) -> None:
    """Room for two of six: everyone is served or told why not, and nothing is left behind."""
    document = registry(
        *SCRIPTED.values(), budget_gb=BUDGET_GB, preempt_grace_s=0.05, contention_policy=policy
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    questions = scripted_questions()
    visits = plan(SEED, list(questions), VISITS, PER_S)
    with daemon(document, tmp_path / "gateway", {"TMPDIR": str(scratch)}) as gateway:
        report = await Clients(gateway, questions).play(visits)
        await emptied(gateway)
        assert report.faults == [], report
        assert report.peak_bytes <= BUDGET_GB * GIB
        assert not list(scratch.iterdir())
        assert "Traceback" not in gateway.log, gateway.log[-5000:]
        assert "socket.send() raised" not in gateway.log  # asyncio tells of a write to nobody
    assert report.swaps >= len(SCRIPTED) - 2, report
    assert report.tally["left"] > 0, report
    if policy["strategy"] == "wait_then_fail":
        readers = sum(visit.manner in ("reads", "dawdles") for visit in visits)
        assert report.tally["complete"] >= readers, report
        assert set(report.complete) == set(questions), report
    else:
        assert any(how.endswith("preempted") for how in report.tally), report
    print(f"\n{policy['strategy']}: {report}")  # noqa: T201


# --- each model for its own purpose ---------------------------------------------------------------

SAYS = [{"role": "user", "content": "hello"}]
FORM: dict[str, Any] = {"files": {"file": ("a.wav", wav(0.1))}}
WRITERS = frozenset({"text", "vision"})

PURPOSES: Mapping[str, str] = {
    "text": "chat and completions",
    "vision": "chat with images",
    "embedding": "embeddings",
    "rerank": "ranking documents",
    "transcription": "transcribing audio",
    "speech": "speaking texts",
}
ROUTES: Mapping[str, tuple[frozenset[str], dict[str, Any]]] = {
    "/v1/chat/completions": (WRITERS, {"json": {"messages": SAYS}}),
    "/v1/completions": (WRITERS, {"json": {"prompt": "hello"}}),
    "/v1/responses": (WRITERS, {"json": {"input": "hello"}}),
    "/v1/messages": (WRITERS, {"json": {"messages": SAYS, "max_tokens": 8}}),
    "/v1/messages/count_tokens": (WRITERS, {"json": {"messages": SAYS}}),
    "/v1/embeddings": (frozenset({"embedding"}), {"json": {"input": "hello"}}),
    "/v1/rerank": (frozenset({"rerank"}), {"json": {"query": "a", "documents": ["a"]}}),
    "/rerank": (frozenset({"rerank"}), {"json": {"query": "a", "documents": ["a"]}}),
    "/v1/audio/transcriptions": (frozenset({"transcription"}), FORM),
    "/v1/audio/translations": (frozenset({"transcription"}), FORM),
    "/v1/audio/speech": (frozenset({"speech"}), {"json": {"input": "hello"}}),
    "/tokenize": (WRITERS | {"embedding", "rerank"}, {"json": {"prompt": "hello"}}),
    "/detokenize": (WRITERS | {"embedding", "rerank"}, {"json": {"tokens": []}}),
}
"""What each route is for, and a request to it, but for the model."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("gateway")
    with daemon(registry(*SCRIPTED.values(), budget_gb=BUDGET_GB), folder) as running:
        yield running


def asking(request: dict[str, Any], model: str) -> dict[str, Any]:
    where = "json" if "json" in request else "data"
    return {**request, where: {"model": model, **request.get(where, {})}}


async def test_a_model_of_another_kind_says_what_it_is_for(gateway: Daemon) -> None:
    """Every route with every kind that cannot serve it; no refusal loads anything."""
    wrong: list[str] = []
    async with gateway.client() as client:
        for route, (kinds, request) in ROUTES.items():
            for kind in PURPOSES.keys() - kinds:
                model = SCRIPTED[kind]["name"]
                answer = await client.post(route, **asking(request, model))
                error = answer.json().get("error", {})
                says = f"model '{model}' is for {PURPOSES[kind]}"
                if answer.status_code != 400 or says not in error["message"]:
                    wrong.append(f"{route} with {kind}: {answer.status_code} {answer.text}")
                elif not route.startswith("/v1/messages") and error["param"] != "model":
                    wrong.append(f"{route} with {kind}: the fault is in {error['param']}")
    assert wrong == []
    status = await gateway.status()
    assert [model["loads"] for model in status["models"]] == [0] * len(SCRIPTED)


async def test_a_model_of_the_right_kind_serves_it(gateway: Daemon) -> None:
    async with gateway.client() as client:
        for route, (kinds, request) in ROUTES.items():
            for kind in sorted(kinds):
                answer = await client.post(route, **asking(request, SCRIPTED[kind]["name"]))
                assert answer.status_code == 200, f"{route} with {kind}: {answer.text}"
