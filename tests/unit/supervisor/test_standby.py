"""Spare processes: how many of what, who gets one, who must go without, and how they fail.

The processes are real; `in_process` asserts at its end that none is left.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys

import pytest

from engines import wire
from gateway import errors
from gateway.errors import Refusal
from gateway.registry.limits import PROCESS_BYTES
from gateway.residency import Pressure, State
from gateway.supervisor import standby
from gateway.supervisor.call import Granted
from gateway.supervisor.probe import ScriptedProbe
from gateway.supervisor.process import Process
from gateway.supervisor.standby import Kind, default_count, wanted_kinds
from tests.harness.in_process import in_process, scripted_model

GIB = 2**30
ROOMY = 10 * GIB
TIGHT = GIB + PROCESS_BYTES // 2
"""Holds a model of 1 GiB, but no spare beside it."""

WANTED: list[tuple[int, list[tuple[Kind | None, int]], tuple[Kind, ...]]] = [
    (0, [("text", 0)], ()),
    (1, [], ()),
    (1, [(None, 9)], ()),
    (1, [("text", 0), ("scripted", 0)], ("text",)),
    (1, [("text", 0), ("scripted", 9)], ("scripted",)),
    (1, [("text", 4), ("scripted", 5)], ("text",)),  # used alike: they must not take turns
    (2, [("text", 0), ("scripted", 9)], ("scripted", "text")),
    (3, [("text", 9), ("scripted", 0)], ("text", "scripted", "text")),
    (2, [("text", 9), (None, 99), ("text", 1)], ("text", "text")),
]


@pytest.mark.parametrize(("count", "users", "kinds"), WANTED)
def test_spares_are_of_the_kinds_that_are_used(
    count: int, users: list[tuple[Kind | None, int]], kinds: tuple[Kind, ...]
) -> None:
    assert wanted_kinds(count, users) == kinds


class Distribution:
    name = "mlx-cuda-13"


def test_without_a_word_there_is_a_spare_on_a_mac_and_with_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [])
    assert default_count() == 0
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [Distribution()])
    assert default_count() == 1
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_count() == 1


# --- who gets one ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_load_takes_the_spare_and_another_one_follows() -> None:
    models = (scripted_model("one"), scripted_model("two"))
    async with in_process(models, ROOMY, standby=1) as rig:
        first = (await rig.spare()).pid
        assert await rig.serve("one") == first
        second = (await rig.spare()).pid
        assert second != first
        assert await rig.serve("two") == second
        assert await rig.serve("one") == first


@pytest.mark.anyio
async def test_a_spare_serves_whatever_it_is_doing() -> None:
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        await rig.until(lambda: [s for s in rig.supervisor.standby.spares if s.usable])
        (spare,) = rig.supervisor.standby.spares
        assert await rig.serve("one") == spare.pid


@pytest.mark.anyio
async def test_the_next_spare_comes_after_the_load_not_beside_it() -> None:
    models = (scripted_model("slow", load_s=600), scripted_model("other"))
    async with in_process(models, ROOMY, standby=1) as rig:
        spare = await rig.spare()
        rig.supervisor.load("slow")
        await rig.until(lambda: rig.supervisor.slots["slow"].pid == spare.pid)
        rig.supervisor.look_at_memory()
        assert rig.supervisor.standby.spares == []
        rig.supervisor.unload("slow")
        await rig.until_state("slow", State.UNLOADED)
        await rig.spare()


@pytest.mark.anyio
async def test_a_model_with_an_environment_of_its_own_uses_none() -> None:
    models = (scripted_model("plain"), scripted_model("own", env={"A": "1"}))
    async with in_process(models, ROOMY, standby=1) as rig:
        spare = await rig.spare()
        assert await rig.serve("own") != spare.pid
        assert await rig.spare() is spare


@pytest.mark.anyio
async def test_without_anybody_to_use_it_there_is_none() -> None:
    async with in_process((scripted_model("own", env={"A": "1"}),), ROOMY, standby=4) as rig:
        await rig.serve("own")
        assert rig.supervisor.standby.spares == []


# --- who must go without --------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_spare_is_gone_before_a_load_that_needs_its_room_begins() -> None:
    models = (scripted_model("plain"), scripted_model("own", env={"A": "1"}))
    async with in_process(models, TIGHT, standby=1) as rig:
        spare = (await rig.spare()).pid
        own = await rig.serve("own")
        assert rig.pids.history == [spare, -(spare or 0), own]
        assert rig.supervisor.standby.spares == []
        rig.supervisor.unload("own")
        await rig.until_state("own", State.UNLOADED)
        assert (await rig.spare()).pid not in (spare, own)


@pytest.mark.anyio
async def test_a_load_that_takes_the_spare_needs_no_room_for_it() -> None:
    async with in_process((scripted_model("one"),), TIGHT, standby=1) as rig:
        spare = (await rig.spare()).pid
        assert await rig.serve("one") == spare
        assert rig.supervisor.standby.spares == []


@pytest.mark.anyio
async def test_spares_leave_room_for_what_fits_alone() -> None:
    models = (scripted_model("one", size_gb=10), scripted_model("own", 10, env={"A": "1"}))
    async with in_process(models, ROOMY, standby=4) as rig:
        await rig.until(lambda: len([s for s in rig.supervisor.standby.spares if s.imported]) == 4)
        await rig.serve("own")
        assert rig.supervisor.standby.spares == []
        await rig.serve("one")
        assert len(rig.pids.alive) == 1


@pytest.mark.anyio
async def test_short_memory_takes_the_spare_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        await rig.serve("one")
        await rig.spare()
        pressure: Pressure = "warning"
        monkeypatch.setattr(ScriptedProbe, "pressure", lambda self: pressure)
        rig.supervisor.look_at_memory()
        await rig.until(lambda: not rig.supervisor.standby.spares)
        pressure = "normal"
        rig.supervisor.look_at_memory()
        await rig.spare()


@pytest.mark.anyio
async def test_a_reload_changes_how_many_there_are_and_of_what() -> None:
    models = (scripted_model("one"), scripted_model("two"))
    async with in_process(models, ROOMY, standby=0) as rig:
        standing = rig.supervisor.standby
        assert standing.spares == []
        rig.reload(models, standby=2)
        await rig.until(lambda: len([s for s in standing.spares if s.imported]) == 2)
        rig.reload(models, standby=1)
        await rig.until(lambda: len(standing.spares) == 1)
        await rig.spare()
        rig.reload((scripted_model("one", env={"A": "1"}),), standby=1, restarted=("one",))
        await rig.until(lambda: not standing.spares)
        rig.reload(models, standby=1, restarted=("one",))
        await rig.spare()


@pytest.mark.anyio
async def test_a_gateway_that_drains_has_none() -> None:
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        await rig.spare()
        rig.supervisor.drain(Refusal(errors.Draining, "no more", 5))
        await rig.until(lambda: not rig.pids.alive)
        rig.supervisor.look_at_memory()
        assert rig.supervisor.standby.spares == []


# --- trouble --------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_spare_that_dies_is_replaced_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        first = await rig.spare()
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await rig.until(lambda: not rig.supervisor.standby.spares)
        assert f"spare pid {first.pid} (scripted): " in caplog.text
        assert "killed by SIGKILL" in caplog.text
        rig.supervisor.look_at_memory()
        assert rig.supervisor.standby.spares == []  # not before the back-off is over
        assert await rig.serve("one") != first.pid  # and nobody waits for it
    monkeypatch.setattr(standby, "RETRY_S", 0.05)
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        first = await rig.spare()
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await rig.until(lambda: not first.usable)
        second = await rig.spare()
        assert await rig.serve("one") == second.pid


@pytest.mark.anyio
async def test_a_spare_that_does_not_answer_costs_a_moment_and_no_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standby, "ANSWER_S", 0.2)
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        spare = await rig.spare()
        assert spare.pid is not None
        os.kill(spare.pid, signal.SIGSTOP)
        served_by = await rig.serve("one")
        assert rig.pids.history == [spare.pid, -spare.pid, served_by]
        assert "did not take the model in time" in caplog.text
        assert rig.view("one").failures == 0


@pytest.mark.anyio
async def test_a_spare_that_dies_in_the_hands_of_a_load_harms_none() -> None:
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        spare = await rig.spare()
        assert spare.pid is not None
        os.kill(spare.pid, signal.SIGSTOP)
        call = rig.call("one")
        os.kill(spare.pid, signal.SIGKILL)
        await rig.until_item(call, Granted)
        await rig.until_item(call, wire.Finished)
        assert rig.supervisor.slots["one"].pid != spare.pid
        assert rig.view("one").failures == 0


@pytest.mark.anyio
async def test_a_load_that_fails_in_a_spare_is_a_failed_load() -> None:
    failing = scripted_model("one", fail_loads=("error",))
    async with in_process((failing,), ROOMY, standby=1) as rig:
        spare = await rig.spare()
        rig.supervisor.load("one")
        await rig.until(lambda: rig.pids.exits)
        assert [exit_.how for _, exit_ in rig.pids.exits] == ["load_failed"]
        assert rig.pids.history[:2] == [spare.pid, -(spare.pid or 0)]


@pytest.mark.anyio
async def test_a_spare_that_cannot_be_started_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = Process.spawn

    async def fails(*args: object) -> Process:
        monkeypatch.setattr(Process, "spawn", original)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(Process, "spawn", fails)
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        await rig.until(lambda: not rig.supervisor.standby.spares)
        assert "it did not start: [Errno 11]" in caplog.text
        await rig.serve("one")


@pytest.mark.anyio
async def test_a_spare_whose_heartbeat_stops_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.supervisor.watch.HEARTBEAT_TIMEOUT_S", 2.5)
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        spare = await rig.spare()
        assert spare.pid is not None
        os.kill(spare.pid, signal.SIGSTOP)
        await rig.until(lambda: not rig.supervisor.standby.spares)
        assert "sent no heartbeat for 2.5 s" in caplog.text
        assert rig.pids.alive == set()


@pytest.mark.anyio
async def test_a_stop_in_the_middle_of_a_handover_is_heeded() -> None:
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        spare = await rig.spare()
        assert spare.pid is not None
        os.kill(spare.pid, signal.SIGSTOP)
        rig.supervisor.load("one")
        rig.supervisor.unload("one")
        os.kill(spare.pid, signal.SIGCONT)
        await rig.until_state("one", State.UNLOADED)
        assert [exit_.how for _, exit_ in rig.pids.exits] == ["asked"]


@pytest.mark.anyio
async def test_limits_that_a_spare_has_not_taken_in_count_for_the_process_after_it() -> None:
    async with in_process((scripted_model("one"),), ROOMY, standby=1) as rig:
        spare = await rig.spare()
        assert spare.pid is not None
        os.kill(spare.pid, signal.SIGSTOP)
        rig.supervisor.load("one")
        slot = rig.supervisor.slots["one"]
        rig.reload((scripted_model("one", 2.0),), standby=1)
        assert slot.terms.limits.charge_bytes == 2 * GIB
        os.kill(spare.pid, signal.SIGKILL)
        await rig.until_state("one", State.READY)
        assert slot.pid != spare.pid
        assert slot._engine is not None
        assert slot._engine._load.limits == slot.terms.limits
