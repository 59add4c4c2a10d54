"""Ten thousand random histories; every promise is checked after every event."""

from __future__ import annotations

import pytest

from gateway.residency import Scheduler
from tests.unit.residency.simulation import Simulation

HISTORIES = 10_000
BATCH = 500
REPLAYED = 10
"""One history in so many is played again, to see that the same events give the same effects."""


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_random_histories(first: int) -> None:
    grants = rejects = 0
    for seed in range(first, first + BATCH):
        simulation = Simulation(seed, client_events=9 + seed % 15)
        try:
            simulation.run()
            if seed % REPLAYED == 0:
                replay(simulation)
        except Exception as error:
            history = "\n".join(
                f"{now:.2f} {event} -> {effects}"
                for (now, event), effects in zip(
                    simulation.events[-30:], simulation.effects[-30:], strict=False
                )
            )
            error.add_note(
                f"seed {seed}: {simulation.first_policy} {simulation.first_models}\n{history}"
            )
            raise
        grants += simulation.auditor.grants
        rejects += simulation.auditor.rejects
    # A generator that never gets anybody served, or refused, would prove nothing.
    assert grants > BATCH
    assert rejects > BATCH


def replay(simulation: Simulation) -> None:
    scheduler = Scheduler(simulation.first_policy, simulation.first_models)
    for (now, (method, args)), effects in zip(simulation.events, simulation.effects, strict=True):
        assert getattr(scheduler, method)(now, *args) == effects
