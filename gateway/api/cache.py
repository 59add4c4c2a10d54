"""`/v1/cache`: what models keep of earlier prompts and images, and having them forget it.

Nothing here loads a model or counts as a use of one. A ready model's engine is asked; of one that
is not ready only files are left, and the gateway sees to those itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from engines import wire
from gateway.api.body import read_body
from gateway.api.query import query_of
from gateway.api.sse import respond
from gateway.errors import GatewayError
from gateway.router import served_by
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor import prompt_folders
from gateway.supervisor.prompt_folders import Files
from gateway.supervisor.slot import Slot
from gateway.supervisor.supervisor import Supervisor

log = logging.getLogger("gateway.cache")

BODY_BYTES = 64 * 2**10
CLEAR_S = 30.0

ALL_PROMPTS = ""
"""The prefix that every prompt begins with; without one, images go too."""

_SUMS = ("entries", "bytes", "hits", "misses", "tokens_saved", "evictions")


class Caches:
    """The routes, as ASGI applications."""

    def __init__(self, live: Live, supervisor: Supervisor) -> None:
        self._live = live
        self._supervisor = supervisor

    async def stats(self, scope: Scope, receive: Receive, send: Send) -> None:
        """By model, for those that the key sees; `?model=` is that one alone."""
        states = {view.name: view.state for view in self._supervisor.snapshot().models}
        models = []
        for name in self._asked(scope):
            folder = self._supervisor.prompt_folder(name)
            on_disk = await asyncio.to_thread(prompt_folders.count, folder)
            # A reload may have removed any of them while a disk was looked at.
            if (slot := self._supervisor.slots.get(name)) is not None:
                models.append({"name": name, "state": states.get(name), **_stats(slot, on_disk)})
        total = {key: sum(model[key] for model in models) for key in _SUMS}
        await respond(send, 200, msgspec.json.encode({"models": models, "total": total}))

    async def clear(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything."""
        await read_body(scope, receive, BODY_BYTES)
        await self._clear(scope, send, None)

    async def clear_prefix(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Prompts, or with `?prefix=` those whose text begins so."""
        await read_body(scope, receive, BODY_BYTES)
        await self._clear(scope, send, query_of(scope).get("prefix", ALL_PROMPTS))

    async def _clear(self, scope: Scope, send: Send, prefix: str | None) -> None:
        names = self._asked(scope)
        models = await asyncio.gather(*(self._clear_one(name, prefix) for name in names))
        rewarm = [self._supervisor.warm(name) for name in names]
        failed = any("error" in model for model in models)
        for model in models:
            log.info("model %s: its cache was cleared: %s", model["name"], model)
        body = {
            "status": "partly cleared" if failed else "cleared",
            "rewarm_scheduled": any(rewarm),
            "models": models,
        }
        await respond(send, 200, msgspec.json.encode(body))

    async def _clear_one(self, name: str, prefix: str | None) -> dict[str, Any]:
        """What the engine has dropped, or what of an earlier one was still on disk."""
        try:
            cleared = await self._ask_to_clear(name, prefix)
        except (GatewayError, TimeoutError) as error:
            why = str(error) or f"the engine did not answer within {CLEAR_S:g} s"
            return {"name": name, "entries": 0, "bytes": 0, "error": why}
        slot = self._supervisor.slots.get(name)
        if cleared is None or slot is None or not slot.keeps_on_disk:
            # Which of them begin with the prefix only the model's tokenizer knows: all of them go.
            folder = self._supervisor.prompt_folder(name)
            try:
                files = await asyncio.to_thread(prompt_folders.clear, folder)
            except OSError as error:
                why = f"its files cannot be removed: {error.strerror or error}"
                return {"name": name, "entries": 0, "bytes": 0, "error": why}
        else:
            files = Files()
        entries, nbytes = (0, 0) if cleared is None else (cleared.entries, cleared.nbytes)
        return {"name": name, "entries": entries + files.entries, "bytes": nbytes + files.nbytes}

    async def _ask_to_clear(self, name: str, prefix: str | None) -> wire.Cleared | None:
        """None without a ready engine. Raises what the engine fails with, and `TimeoutError`."""
        answer = self._supervisor.ask_engine(
            name, lambda id_, path: wire.ClearCache(id_, path, prefix)
        )
        if answer is None:
            return None
        async with asyncio.timeout(CLEAR_S):
            cleared = await answer
        return cleared if isinstance(cleared, wire.Cleared) else None

    def _asked(self, scope: Scope) -> list[str]:
        """Names of what is loaded for the models that are meant and that the key sees."""
        router = access_of(scope).router(self._live.now.router)
        asked = query_of(scope).get("model")
        models = router.models if asked is None else (router.find(asked),)
        if asked is not None:
            scope["state"]["model"] = served_by(models[0])
        names = dict.fromkeys(map(served_by, models))
        return [name for name in names if name in self._supervisor.slots]


def _stats(slot: Slot, on_disk: Files) -> dict[str, Any]:
    beat = slot.heartbeat if slot.ready is not None else None
    cache = beat.prompt_cache if beat else wire.PromptCacheStats()
    features = beat.features if beat else wire.FeatureCacheStats()
    return {
        "entries": cache.entries,
        "bytes": beat.memory.prompt_cache_bytes if beat else 0,
        "limit_bytes": slot.terms.limits.prompt_cache_bytes,
        "hits": cache.hits,
        "misses": cache.misses,
        "tokens_saved": cache.tokens_saved,
        "evictions": cache.evictions,
        "disk": {
            "entries": on_disk.entries,
            "bytes": on_disk.nbytes,
            "hits": cache.disk_hits,
            "bad_files": cache.disk_bad_files,
        },
        "features": {
            "entries": features.entries,
            "bytes": features.nbytes,
            "hits": features.hits,
            "misses": features.misses,
        },
    }
