"""Health, metrics and status: for probes and operators, without touching a model."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import msgspec

from engines import wire
from gateway import __version__
from gateway.api.admin import Outcome
from gateway.api.figures import gauges, memory_by_class
from gateway.api.query import query_of
from gateway.api.sse import respond
from gateway.api.views import unix_time
from gateway.errors import InvalidRequest
from gateway.metrics import Metrics
from gateway.registry.find import Model
from gateway.residency import ModelView, State
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.probe import Probe
from gateway.supervisor.slot import Slot
from gateway.supervisor.supervisor import Supervisor
from gateway.threads import in_thread

TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
METRICS = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]


class LastReload(Protocol):
    """Knows how the last reload went."""

    @property
    def last(self) -> Outcome | None: ...


class Operate:
    """The routes, as ASGI applications."""

    def __init__(
        self,
        live: Live,
        supervisor: Supervisor,
        probe: Probe,
        metrics: Metrics,
        reloads: LastReload,
    ) -> None:
        self._live = live
        self._supervisor = supervisor
        self._probe = probe
        self._metrics = metrics
        self._reloads = reloads
        self._began = time.monotonic()
        self._scrape = asyncio.Lock()

    async def livez(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"alive\n", TEXT)

    async def readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._supervisor.draining:
            await respond(send, 503, b"draining\n", TEXT)
        else:
            await respond(send, 200, b"ready\n", TEXT)

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whether the gateway answers; one broken model does not make it unhealthy."""
        seen = self._seen(scope)
        models = [view for view in self._supervisor.snapshot().models if view.name in seen]
        body = {
            "status": "draining" if self._supervisor.draining else "ok",
            "version": __version__,
            "models": len(access_of(scope).router(self._live.now.router).models),
            "loaded": [view.name for view in models if view.state is State.READY],
            "failed": [view.name for view in models if view.state is State.FAILED],
        }
        await respond(send, 200, msgspec.json.encode(body))

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """With `?aliases=vllm` under vLLM's names too."""
        aliases = _aliases(scope)
        configured = {model.entry.name for model in self._live.now.router.models}
        self._metrics.forget_others(configured | self._supervisor.slots.keys())
        self._metrics.count_lost()
        async with self._scrape:  # however many ask, one thread at a time writes pages
            now = gauges(self._supervisor)
            page = await in_thread(self._metrics.page, now, aliases=aliases)
        await respond(send, 200, page, METRICS)

    async def status(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen, snapshot = self._seen(scope), self._supervisor.snapshot()
        views = {view.name: view for view in snapshot.models}
        # It names models, and files of the gateway's machine.
        last = self._reloads.last if access_of(scope).may_read_reloads else None
        ledger, turns = snapshot.ledger, self._supervisor.turns
        body = {
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._began, 1),
            "draining": self._supervisor.draining,
            "last_reload": None if last is None else last.to_builtins(),
            "pressure": snapshot.pressure,
            "waiting": len(snapshot.waiters),
            "memory": {
                "configured_budget_bytes": self._live.now.configured_budget_bytes,
                "budget_bytes": ledger.budget,
                "committed_bytes": ledger.committed,
                "stranded_bytes": ledger.stranded,
                "available_bytes": ledger.available,
                "overcommitted": ledger.overcommitted,
                "system_available_bytes": self._probe.available_bytes(),
            },
            "prefill": {
                "slots": turns.slots,
                "holding": [name for name in turns.holding if name in seen],
                "late": [name for name in turns.late if name in seen],
                "waiting": [name for name in turns.waiting if name in seen],
            },
            "models": [
                _model_status(slot.model, views[name], slot)
                for name, slot in self._supervisor.slots.items()
                if name in seen
            ],
        }
        await respond(send, 200, msgspec.json.encode(body))

    def _seen(self, scope: Scope) -> set[str]:
        """The slots that the sender may know of: those of its models, and what is leaving."""
        access = access_of(scope)
        return {name for name, slot in self._supervisor.slots.items() if access.sees(slot.model)}


def _aliases(scope: Scope) -> bool:
    """Raises `InvalidRequest` for names that we do not have."""
    asked = query_of(scope).get("aliases")
    if asked not in (None, "vllm"):
        raise InvalidRequest(f"aliases: vllm, not {asked[:50]!r}", param="aliases")
    return asked is not None


def _model_status(model: Model, view: ModelView, slot: Slot) -> dict[str, Any]:
    beat = slot.heartbeat
    cache = beat.prompt_cache if beat else wire.PromptCacheStats()
    return {
        "name": view.name,
        "kind": model.entry.kind,
        "state": view.state,
        "reason": view.reason,
        "leases": view.running,
        "running": beat.running if beat else 0,
        "waiting": view.waiting,
        "loads": view.loads,
        "evictions": view.evictions,
        "load_s": slot.load_seconds,
        "load_done": view.load_done,
        "load_total": view.load_total,
        "pid": slot.pid,
        "pinned": view.pinned,
        "pinned_until": unix_time(view.pinned_until),
        "ttl_left_s": view.ttl_left_s,
        "retry_at": unix_time(view.failed_until),
        "idle_s": view.idle_s,
        "charge_bytes": view.charge_bytes,
        "measured_bytes": view.measured_bytes,
        "measured": memory_by_class(view, slot),
        "limits": slot.ready.applied if slot.ready else {},
        "prompt_cache": msgspec.structs.asdict(cache),
        "entry": _effective(model),
    }


def _effective(model: Model) -> dict[str, Any]:
    """The entry's settings; the environment may hold secrets, so only its names are shown."""
    entry: dict[str, Any] = msgspec.to_builtins(model.entry)
    entry["env"] = sorted(model.entry.env)
    return entry
