"""What a key and a request may say of priority, and ending a call for somebody else."""

from __future__ import annotations

import pytest

from engines import wire
from gateway.errors import Cancelled
from gateway.residency import Effect, Priority, Request
from gateway.supervisor.call import CallFailed
from gateway.supervisor.setup import Wish
from tests.harness.in_process import in_process, scripted_model

pytestmark = pytest.mark.anyio

GIB = 2**30
HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


@pytest.mark.parametrize(
    ("asked", "granted", "expected"),
    [
        (None, None, None),
        (LOW, None, LOW),
        (HIGH, None, NORMAL),
        (None, HIGH, HIGH),
        (NORMAL, HIGH, NORMAL),
        (HIGH, LOW, LOW),
    ],
)
async def test_a_request_only_lowers_what_it_is_granted(
    asked: Priority | None,
    granted: Priority | None,
    expected: Priority | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with in_process((scripted_model("a", priority="normal"),), GIB * 4) as made:
        seen: list[Request] = []
        scheduler = made.supervisor._scheduler
        decide = scheduler.on_request

        def noted(now: float, request: Request) -> list[Effect]:
            seen.append(request)
            return decide(now, request)

        monkeypatch.setattr(scheduler, "on_request", noted)
        call = made.supervisor.open(
            "a", lambda id_: wire.Generate(id_, []), Wish(asked, granted=granted)
        )
        made.supervisor.close(call)
    assert [request.priority for request in seen] == [expected]


async def test_a_call_that_waits_and_one_that_runs_are_ended_alike() -> None:
    model = scripted_model("a", tokens_per_s=10, deltas=10_000, max_concurrency=1)
    async with in_process((model,), GIB * 4) as made:
        running, waiting = made.call("a"), made.call("a")
        await made.until_item(running, wire.TextDelta)
        for call in (waiting, running):
            made.supervisor.cancel(call, Cancelled("enough"))
            made.supervisor.cancel(call, Cancelled("twice"))
            (failed,) = [item for item in call.take() if isinstance(item, CallFailed)]
            assert failed.error.message == "enough"
        await made.until(lambda: not made.supervisor.slots["a"].calls)
        await made.supervisor.drained()
