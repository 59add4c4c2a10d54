"""The memory budget and how models share it, as a registry says it."""

from __future__ import annotations

from typing import Annotated, Literal

from gateway.registry.schema.values import (
    Part,
    PositiveGigabytes,
    PositiveSeconds,
    Seconds,
    Spares,
    Strategy,
    live,
)


class ContentionPolicy(Part, frozen=True, kw_only=True):
    """What happens when a model is asked for and what would have to leave is in use."""

    strategy: Annotated[
        Strategy,
        live(
            "fail refuses at once; wait and wait_then_fail refuse at wait_timeout_s; preempt ends "
            "running calls at once, wait_then_preempt after preempt_after_s"
        ),
    ] = "wait_then_fail"
    wait_timeout_s: Annotated[
        PositiveSeconds, live("how long a request waits for room before it is refused")
    ] = 120
    preempt_after_s: Annotated[
        Seconds, live("with wait_then_preempt: how long to wait before running calls are ended")
    ] = 15


class Manager(Part, frozen=True, kw_only=True):
    """The memory budget and how models share it."""

    memory_budget_gb: Annotated[
        PositiveGigabytes | Literal["auto"],
        live(
            "memory for all models together, with their KV and caches; auto is what models can "
            "be given, less max(4 GiB, 15 %) of the machine",
            examples=["auto", 80, "80GB", "512MiB"],
        ),
    ] = "auto"
    contention_policy: Annotated[
        ContentionPolicy, live("what happens when there is no room and nothing idle to evict")
    ] = ContentionPolicy()
    min_resident_s: Annotated[
        Seconds | None,
        live("how long a loaded model is kept at least; absent: min(10, max_wait_s)"),
    ] = None
    max_wait_s: Annotated[
        Seconds | None,
        live(
            "a request that has waited longer goes before every priority; "
            "absent: min(60, wait_timeout_s / 2)"
        ),
    ] = None
    drain_max_s: Annotated[
        Seconds, live("how long running calls of a changed or removed model may take at a reload")
    ] = 30
    load_concurrency: Annotated[int, live("models that load at the same time", ge=1, le=16)] = 1
    max_engines: Annotated[int, live("engine processes at the same time", ge=1, le=64)] = 8
    standby: Annotated[
        Spares | None,
        live(
            "spare processes with their imports done, so that a load is the weights alone; "
            "absent: 1, and 0 on Linux without CUDA"
        ),
    ] = None
    load_timeout_s: Annotated[
        PositiveSeconds, live("a load that makes no progress for so long has failed")
    ] = 120
    hang_timeout_s: Annotated[
        PositiveSeconds, live("a model with work that makes no progress for so long is ended")
    ] = 120
    first_step_timeout_s: Annotated[
        PositiveSeconds, live("hang_timeout_s of the first step after a load, when kernels compile")
    ] = 600
    prefill_slots: Annotated[
        int,
        live(
            "models that take in a long prompt (512 tokens or more that are not cached) at the "
            "same time, so that running calls of the others go on; 0: any number",
            ge=0,
            le=64,
        ),
    ] = 1
    preempt_grace_s: Annotated[
        Seconds, live("how long calls that will be preempted may still take to end by themselves")
    ] = 2
