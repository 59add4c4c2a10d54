"""What all stories share: small models, a policy with short times, and how one is checked."""

from __future__ import annotations

from gateway.residency import ModelSpec, Policy, Strategy
from tests.unit.residency.play import Play

Story = tuple[Policy, tuple[ModelSpec, ...], str]

BIG = (ModelSpec("A", 8), ModelSpec("B", 8), ModelSpec("P", 1, pin=True))
SMALL = (ModelSpec("R", 4), ModelSpec("S", 3), ModelSpec("T", 3), ModelSpec("U", 6))
CACHED = (ModelSpec("A", 6, 2), ModelSpec("B", 4, 1), ModelSpec("C", 3))


def policy(strategy: Strategy = "wait", **changes: float) -> Policy:
    values: dict[str, float] = {
        "wait_timeout_s": 30,
        "max_wait_s": 20,
        "min_resident_s": 5,
        "preempt_after_s": 10,
        **changes,
    }
    return Policy(10, strategy, **values)  # type: ignore[arg-type]  # names are checked by Policy


def check(story: Story) -> None:
    rules, models, script = story
    snapshot = Play(rules, models).run(script).scheduler.snapshot(0)
    assert snapshot.ledger.committed == sum(view.charge_bytes for view in snapshot.models)
