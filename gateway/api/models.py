"""`GET /v1/models` and `/v1/models/{id}`: what there is, without touching any of it."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.api.errors import speaks_anthropic
from gateway.api.media import taken_by
from gateway.api.messages_models import model_info, model_page
from gateway.api.sse import respond
from gateway.api.views import unix_time
from gateway.registry.find import Model
from gateway.residency import ModelView, State
from gateway.router import served_by
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.supervisor import Supervisor

STATUS = {
    State.READY: "loaded",
    State.DRAINING: "loaded",
    State.LOADING: "loading",
    State.UNLOADED: "unloaded",
    State.UNLOADING: "unloaded",
    State.FAILED: "error",
    State.UNAVAILABLE: "error",
}


class Models:
    """The two routes, as ASGI applications."""

    def __init__(self, live: Live, supervisor: Supervisor, started_at: int) -> None:
        self._live = live
        self._supervisor = supervisor
        self._started_at = started_at

    async def index(self, scope: Scope, receive: Receive, send: Send) -> None:
        views = self._views()
        router = access_of(scope).router(self._live.now.router)
        cards = [self._card(model, views) for model in router.models]
        if speaks_anthropic(scope):
            body = model_page(cards, scope["query_string"])
        else:
            body = {"object": "list", "data": cards}
        await respond(send, 200, msgspec.json.encode(body))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        router = access_of(scope).router(self._live.now.router)
        model = router.find(scope["path_params"]["model"])
        card = self._card(model, self._views())
        body = model_info(card) if speaks_anthropic(scope) else card
        await respond(send, 200, msgspec.json.encode(body))

    def _views(self) -> dict[str, ModelView]:
        return {view.name: view for view in self._supervisor.snapshot().models}

    def _card(self, model: Model, views: dict[str, ModelView]) -> dict[str, Any]:
        entry, base = model.entry, served_by(model)
        view, slot = views[base], self._supervisor.slots[base]
        context = (slot.ready.context_length or None) if slot.ready else _context_length(model)
        status: dict[str, Any] = {"value": STATUS[view.state]}
        if view.reason:
            status["reason"] = view.reason
        if view.state is State.LOADING and view.load_total:
            status["progress"] = round(view.load_done / view.load_total, 3)
        return {
            "id": entry.name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "mlx-gateway",
            "name": entry.name,
            "description": entry.description,
            "aliases": entry.aliases,
            "tags": entry.tags,
            "context_length": context,
            "max_model_len": context,
            "status": status,
            "architecture": {
                "input_modalities": taken_by(model, slot.ready),
                "output_modalities": [_OUTPUTS.get(entry.kind or "text", "text")],
            },
            "meta": {
                "kind": model.entry.kind,
                "variant_of": entry.of,
                "state": view.state,
                "leases": view.running,
                "waiting": view.waiting,
                "pinned": view.pinned,
                "pinned_until": unix_time(view.pinned_until),
                "ttl_left_s": view.ttl_left_s,
                "needs_bytes": slot.terms.limits.charge_bytes if model.size else None,
                "charge_bytes": view.charge_bytes,
                "measured_bytes": view.measured_bytes,
            },
        }


_OUTPUTS = {"embedding": "embedding", "rerank": "score", "speech": "audio"}
"""What comes out of a model that does not write text, by its kind."""


def _context_length(model: Model) -> int | None:
    known = model.size.context_length if model.size else None
    asked = model.entry.context_length
    return min(known, asked) if known and asked else asked or known
