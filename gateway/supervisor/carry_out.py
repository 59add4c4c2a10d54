"""Carries out what the scheduler decides for one call or one model's process.

Owns nothing: the supervisor has the calls and the slots, and feeds it one effect after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from gateway import errors
from gateway.residency import (
    CancelLeases,
    CancelLoad,
    Grant,
    Reject,
    SetLimits,
    StartLoad,
    Stop,
    Waiting,
)
from gateway.supervisor.call import Call, Granted
from gateway.supervisor.slot import Observer, Slot
from gateway.supervisor.standby import Standby
from gateway.supervisor.tasks import Tasks

log = logging.getLogger("gateway.supervisor")


class Owner(Protocol):
    """The supervisor, as effects need it."""

    def on_released(self, call_id: int) -> None:
        """A lease is over that no engine will end."""

    def on_rejected(self) -> None:
        """One call less waits."""

    def warm(self, model: str) -> bool:
        """Has a ready model's warm prompts taken in."""

    def settle_standby(self) -> None:
        """There is more or less room for spares."""


class Doer:
    """Tells those who wait, and slots, what was decided about them."""

    def __init__(
        self,
        waiting: dict[int, Call],
        slots: Mapping[str, Slot],
        standby: Standby,
        tasks: Tasks,
        observer: Observer,
        owner: Owner,
    ) -> None:
        self._waiting = waiting
        self._slots = slots
        self._standby = standby
        self._tasks = tasks
        self._observer = observer
        self._owner = owner

    def tell_waiter(self, effect: Grant | Reject | Waiting) -> None:
        match effect:
            case Grant():
                self._serve(effect)
            case Reject():
                call = self._waiting.pop(effect.request_id)
                call.fail(effect.refusal.error())
                self._observer.refused(call.model, call.asked, effect)
                self._owner.on_rejected()
            case Waiting():
                self._waiting[effect.request_id].push(effect.phase)

    def _serve(self, grant: Grant) -> None:
        """Hands a call to its engine; a fault there ends the call, and its lease with it."""
        call = self._waiting.pop(grant.request_id)
        call.push(Granted())
        try:
            self._slots[grant.model].serve(call)
        except Exception:  # whatever it was, a client waits for this call
            log.exception("call %s could not be handed to model %s", call.id, grant.model)
            self._slots[grant.model].calls.pop(call.id, None)
            call.fail(errors.InternalError("the gateway could not hand the request to its model"))
            self._owner.on_released(call.id)
            return
        self._observer.granted(
            grant.model, call.asked, asyncio.get_running_loop().time() - call.opened_at
        )

    def tell_slot(self, effect: StartLoad | CancelLoad | Stop | SetLimits | CancelLeases) -> None:
        slot = self._slots[effect.model]
        match effect:
            case StartLoad():
                spare = self._standby.take(slot.spare_kind)
                self._owner.settle_standby()  # what does not fit beside this load has to go first
                slot.start(self._tasks, spare, self._standby.leaving)
            case CancelLoad():
                slot.stop("its load is no longer wanted")
            case Stop():
                slot.stop(effect.reason)
                self._observer.stopped(effect)
            case SetLimits():
                slot.set_prompt_cache(effect.prompt_cache_bytes)
                if effect.prompt_cache_bytes:  # what was there may have been taken away before
                    self._owner.warm(effect.model)
                self._observer.limited(effect)
            case CancelLeases():
                self._cancel_leases(effect)

    def _cancel_leases(self, effect: CancelLeases) -> None:
        slot = self._slots[effect.model]
        for call_id in effect.request_ids:
            call = slot.calls.get(call_id)
            if call is not None:
                slot.cancel(call_id, effect.reason.message)
                call.fail(effect.reason.error())
        self._observer.ended(effect)
