"""What metrics show of the state of everything, read at a scrape."""

from __future__ import annotations

import asyncio
from typing import get_args

from engines import wire
from gateway.metrics import Gauges, ModelGauges
from gateway.residency import ModelView, Pressure, State
from gateway.supervisor.slot import Slot
from gateway.supervisor.supervisor import Supervisor


def gauges(supervisor: Supervisor) -> Gauges:
    """All of it now."""
    snapshot, slots = supervisor.snapshot(), supervisor.slots
    now = asyncio.get_running_loop().time()
    spares = (spare.pid for spare in supervisor.standby.spares)
    tokenizer = supervisor.tokenizer_pid
    return Gauges(
        budget_bytes=snapshot.ledger.budget,
        committed_bytes=snapshot.ledger.committed,
        stranded_bytes=snapshot.ledger.stranded,
        available_bytes=snapshot.ledger.available,
        overcommitted=snapshot.ledger.overcommitted is not None,
        pressure=snapshot.pressure,
        engines=snapshot.engines,
        states=tuple(State),
        pressures=get_args(Pressure),
        models=[_model(view, slots[view.name], now) for view in snapshot.models],
        helpers={
            "spare": tuple(pid for pid in spares if pid is not None),
            "tokenizer": () if tokenizer is None else (tokenizer,),
        },
        draining=supervisor.draining,
    )


def memory_by_class(view: ModelView, slot: Slot) -> dict[str, int]:
    """Bytes by class; what the whole measures above the known classes is `unattributed`."""
    beat = slot.heartbeat
    memory = beat.memory if beat else slot.ready.memory if slot.ready else wire.Memory()
    known = memory.weights_bytes + memory.kv_bytes + memory.prompt_cache_bytes
    return {
        "weights": memory.weights_bytes,
        "kv": memory.kv_bytes,
        "prompt_cache": memory.prompt_cache_bytes,
        "mlx_cache": memory.mlx_cache_bytes,
        "process": memory.process_bytes,
        "unattributed": max(0, view.measured_bytes - known - memory.mlx_cache_bytes),
    }


def _model(view: ModelView, slot: Slot, now: float) -> ModelGauges:
    beat = slot.heartbeat
    prompts = beat.prompt_cache if beat else wire.PromptCacheStats()
    features = beat.features if beat else wire.FeatureCacheStats()
    return ModelGauges(
        model=view.name,
        leases=view.running,
        waiting=view.waiting,
        state=view.state,
        loaded=view.state in (State.READY, State.DRAINING),
        pinned=view.pinned,
        charge_bytes=view.charge_bytes,
        memory=memory_by_class(view, slot),
        kv_limit_bytes=slot.terms.limits.kv_bytes,
        running=beat.running if beat else 0,
        queued=beat.waiting if beat else 0,
        heartbeat_age_s=now - slot.heard_at if beat else None,
        prompt_cache=_prompt_counts(prompts),
        prompts_kept=prompts.entries,
        prompts_on_disk_bytes=prompts.disk_bytes,
        features={"hit": features.hits, "miss": features.misses},
        features_bytes=features.nbytes,
    )


def _prompt_counts(cache: wire.PromptCacheStats) -> dict[str, int]:
    return {
        "hit": cache.hits,
        "miss": cache.misses,
        "eviction": cache.evictions,
        "disk_hit": cache.disk_hits,
        "bad_file": cache.disk_bad_files,
        "token_saved": cache.tokens_saved,
    }
