"""Does what the scheduler decides: the one owner of engines, calls and the scheduler itself.

Everything that happens becomes one event for the scheduler, fed one at a time; its effects are
executed at once and without awaiting, so nothing can happen between a decision and its execution.
The only tasks are the engines' lives.

A lease ends with its engine's `Finished` or `Failed` for the call, or with the engine's process;
never with the response, which can only ask for it early (`close`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import assert_never

from engines import wire
from gateway import errors
from gateway.errors import Refusal
from gateway.registry.remembered import Remembered
from gateway.residency import (
    CancelLeases,
    CancelLoad,
    Effect,
    Explanation,
    Forgotten,
    Grant,
    RegistryDiff,
    Reject,
    Request,
    Scheduler,
    SetLimits,
    SetTimer,
    Snapshot,
    StartLoad,
    State,
    Stop,
    Transition,
    Waiting,
)
from gateway.supervisor.call import Call, ClientLeft
from gateway.supervisor.carry_out import Doer
from gateway.supervisor.probe import Probe
from gateway.supervisor.prompt_folders import folder_of
from gateway.supervisor.setup import PLAIN, Setup, Wish, terms_of, warmed_by
from gateway.supervisor.slot import Observer, Slot, Terms, model_spec
from gateway.supervisor.standby import Standby
from gateway.supervisor.tasks import Tasks
from gateway.supervisor.tokenizers import ANSWER_S, Tokenizers, about, readable, within_entry
from gateway.supervisor.turns import TurnDesk, TurnsView
from gateway.supervisor.warm import Warmer

log = logging.getLogger("gateway.supervisor")


class Supervisor:
    """Serves calls with engines. Synchronous but for `ask`, `drained` and `shutdown`."""

    def __init__(
        self, setup: Setup, probe: Probe, sizes: Remembered, tasks: Tasks, observer: Observer
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._probe = probe
        self._sizes = sizes
        self._observer = observer
        self._setup = setup
        self._slots: dict[str, Slot] = {}
        for terms in terms_of(setup, self._sizes):
            self._slots[terms.model.entry.name] = Slot(terms, probe, self, observer)
        specs = [model_spec(slot.terms) for slot in self._slots.values()]
        self._scheduler = Scheduler(setup.policy, specs)
        self._waiting: dict[int, Call] = {}
        self._wished: set[str] = set()
        self._ids = itertools.count(1)
        self._effects: deque[Effect] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._draining: Refusal | None = None
        self._stopped = False
        self._quiet = asyncio.Event()
        self._moved = False
        self._turns = TurnDesk(setup.prefill_slots, self._grant_turn)
        self._standby = Standby(tasks, observer, self.settle_standby)
        self._doer = Doer(self._waiting, self._slots, self._standby, tasks, observer, self)
        self._tokenizers = Tokenizers(tasks, observer)
        self._warmer = Warmer(tasks, self.ask_engine)

    # --- for requests -------------------------------------------------------------------------

    def open(
        self,
        model: str,
        make: Callable[[int], wire.Request],
        wish: Wish = PLAIN,
        asked: str | None = None,
    ) -> Call:
        """Starts a call; what becomes of it arrives in its mailbox.

        `asked` is the name that its client knows, of a variant that `model` serves.

        Raises `Draining`, `BodyTooLarge`, and whatever `make` raises.
        """
        if self._draining is not None:
            raise self._draining.error()
        call_id = next(self._ids)
        frame = wire.encode(make(call_id))
        if len(frame) > wire.MAX_REQUEST_BYTES:
            raise errors.BodyTooLarge(
                f"the request takes {len(frame):,} bytes on its way to the model; "
                f"the limit is {wire.MAX_REQUEST_BYTES:,}"
            )
        priority = wish.granted
        # A reload may have removed the model while its request came in: then it is refused below.
        if wish.priority is not None and model in self._slots:
            # A client may stand back for others, not push ahead of what the registry grants it.
            own = model_spec(self._slots[model].terms).priority
            priority = max(wish.priority, own if priority is None else priority)
        request = Request(call_id, model, priority, wish.keep_alive_s, wish.may_evict)
        effects = self._scheduler.on_request(self._loop.time(), request)
        call = self._waiting[call_id] = Call(call_id, model, frame, asked)
        self._feed(effects)
        return call

    async def ask(self, model: str, make: Callable[[int, str], wire.Ask]) -> wire.Answer:
        """Asks something small of a model's tokenizer, by id and folder: its engine if it is ready.

        Takes no lease, loads nothing, and is no use of the model. Raises `Draining`,
        `BodyTooLarge`, `ModelNotFound`, `ModelUnavailable`, and what became of the question.
        """
        if self._draining is not None:
            raise self._draining.error()
        slot = self._slots.get(model)
        if slot is None:  # removed while the question came in
            raise errors.ModelNotFound(f"there is no model {model!r} any more", param="model")
        question = about(slot.model, next(self._ids), make)
        if slot.ready is not None:
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await slot.ask(question)
            except (errors.Unavailable, TimeoutError) as error:
                log.info("model %s: its engine cannot count now: %s", model, error)
        return within_entry(slot.model, await self._tokenizers.ask(question))

    def ask_engine(
        self, model: str, make: Callable[[int, str], wire.Ask]
    ) -> asyncio.Future[wire.Answer] | None:
        """Asks something small of a model's engine alone; None when that is not ready.

        As `ask`, it is no use of the model. Raises `BodyTooLarge` and `QueueFull`.
        """
        slot = self._slots.get(model)
        if slot is None or slot.ready is None:
            return None
        return slot.ask(readable(make(next(self._ids), "")))

    def warm(self, model: str) -> bool:
        """Has a ready model's warm prompts taken in; False when there is nothing to do."""
        slot = self._slots.get(model)
        return slot is not None and slot.ready is not None and self._warmer.schedule(slot.model)

    def prompt_folder(self, model: str) -> Path | None:
        """Where what it keeps of prompts on disk would be; None too once it is removed."""
        slot = self._slots.get(model)
        return None if slot is None else folder_of(self._setup.prompts, slot.model)

    def close(self, call: Call) -> None:
        """Ends a call on the client's behalf; for one that is over it does nothing."""
        self._release(call, "the client left")
        call.abandon()

    def credit(self, call: Call, nbytes: int) -> None:
        """Its client has taken so many bytes of an answer that is sent by credit."""
        if call.model in self._slots:  # a reload may have removed it while its calls ended
            self._slots[call.model].credit(call.id, nbytes)

    def too_slow(self, call: Call) -> None:
        """Ends a call whose client takes nothing; its mailbox says so."""
        self._release(call, "the client does not read")
        call.overflow()

    def cancel(self, call: Call, error: errors.GatewayError) -> None:
        """Ends a call for somebody else than its client, who is told. Once over it stays."""
        if not call.over:
            self._release(call, error.message)
            call.fail(error)

    def _release(self, call: Call, why: str) -> None:
        if self._waiting.pop(call.id, None) is not None:
            self._feed(self._scheduler.on_cancelled(self._loop.time(), call.id))
            self._quiet.set()
        elif not call.over:
            self._slots[call.model].cancel(call.id, why)

    def client_left(self, call: Call) -> None:
        """The client closed its connection while the answer is under way."""
        call.push(ClientLeft())

    # --- for the daemon -----------------------------------------------------------------------

    def preload(self, settled: Collection[str] = ()) -> None:
        """Asks for every entry that wants to be resident, in file order, within the budget.

        Those in `settled` have had their preload; what has become of them since then is wanted.
        While draining nothing is loaded for later.
        """
        if self._draining is not None:
            return
        for model in self._setup.models:
            entry = model.entry
            if entry.preload and entry.of is None and entry.name not in settled:
                self._request_load(entry.name, evict=False)
        self.settle_standby()

    def reload(self, setup: Setup, restarted: frozenset[str]) -> None:
        """Takes over a new registry in one step; `restarted` names what needs a new process."""
        settled = self._preloaded()
        self._setup = setup
        specs = []
        for terms in terms_of(setup, self._sizes):
            name = terms.model.entry.name
            specs.append(model_spec(terms))
            if name in self._slots:
                self._configure(self._slots[name], terms, restart=name in restarted)
            else:
                self._slots[name] = Slot(terms, self._probe, self, self._observer)
        diff = RegistryDiff(setup.policy, tuple(specs), restarted)
        self._feed(self._scheduler.on_registry(self._loop.time(), diff))
        self._turns.lend(setup.prefill_slots)
        self.preload(settled)

    def _configure(self, slot: Slot, terms: Terms, *, restart: bool) -> None:
        before = warmed_by(slot.model)
        slot.configure(terms, restart=restart)
        if warmed_by(slot.model) != before:
            self.warm(slot.name)

    def _preloaded(self) -> set[str]:
        """Entries with `preload` that have been loaded since they are there."""
        names = (m.entry.name for m in self._setup.models if m.entry.preload and not m.entry.of)
        return {name for name in names if self._slots[name].loads}

    def load(self, name: str) -> None:
        """As an operator asks; what becomes of it is in the snapshot."""
        self._request_load(name, evict=True)

    def _request_load(self, name: str, *, evict: bool) -> None:
        self._wished.add(name)
        self._feed(self._scheduler.on_load_requested(self._loop.time(), name, evict))

    def unload(self, name: str) -> None:
        """As an operator asks: running calls get `drain_max_s`."""
        self._feed(self._scheduler.on_unload_requested(self._loop.time(), name))

    def pin(self, name: str, seconds: float | None) -> None:
        """Keeps a model once it is loaded: for so long, or for good."""
        now = self._loop.time()
        until = None if seconds is None else now + seconds
        self._feed(self._scheduler.on_pin(now, name, until))
        self._observer.pinned(name, True, until)

    def unpin(self, name: str) -> None:
        """Ends what `pin` began; a pin in the registry stays."""
        self._feed(self._scheduler.on_unpin(self._loop.time(), name))
        self._observer.pinned(name, self._slots[name].terms.model.entry.pin, None)

    def explain(self, name: str) -> Explanation:
        """What a request for this model would meet right now."""
        return self._scheduler.explain(self._loop.time(), name)

    def refusal_for(self, name: str) -> Refusal | None:
        """Why a request for it would be refused at once; None when it would not."""
        return self._scheduler.refusal_for(self._loop.time(), name)

    def look_at_memory(self) -> None:
        """Tells the scheduler how the system fares; called every few seconds."""
        self._feed(self._scheduler.on_pressure(self._loop.time(), self._probe.pressure()))
        self.settle_standby()

    def drain(self, reason: Refusal) -> None:
        """Refuses new calls from now on; running ones go on."""
        self._draining = reason
        self._standby.end_all()

    async def drained(self) -> None:
        """Returns once no call is waiting or running."""
        while self._waiting or self.serving:
            self._quiet.clear()
            await self._quiet.wait()

    def end_calls(self, reason: Refusal) -> None:
        """Ends every call with this reason, in the client's own dialect."""
        while self._waiting:  # one that leaves can have others granted or refused
            _, call = self._waiting.popitem()
            self._feed(self._scheduler.on_cancelled(self._loop.time(), call.id))
            call.fail(reason.error())
        for slot in self._slots.values():
            for call in list(slot.calls.values()):
                slot.cancel(call.id, reason.message)
                call.fail(reason.error())

    async def shutdown(self) -> None:
        """Stops every engine and waits until each is reaped (bounded by each engine's end).

        Nothing is decided any more: else a model that waits for room would load into what leaves.
        """
        self._stopped = True
        lives = [slot.stop("the gateway stops") for slot in self._slots.values()]
        tasks = [task for task in lives if task is not None]
        if tasks:
            await asyncio.wait(tasks)
        await self._standby.close()
        await self._tokenizers.close()
        self._turns.close()
        if self._timer is not None:
            self._timer.cancel()

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot(self._loop.time())

    @property
    def slots(self) -> Mapping[str, Slot]:
        """For reading: status and metrics."""
        return self._slots

    @property
    def standby(self) -> Standby:
        """For reading: status and metrics."""
        return self._standby

    @property
    def tokenizer_pid(self) -> int | None:
        """Of the process that counts for models which are not loaded, while there is one."""
        return self._tokenizers.pid

    @property
    def turns(self) -> TurnsView:
        """Which models take in a long prompt now, and which wait for it."""
        return self._turns.view()

    @property
    def serving(self) -> bool:
        """Whether any call runs."""
        return any(slot.calls for slot in self._slots.values())

    @property
    def draining(self) -> bool:
        return self._draining is not None

    # --- for slots: what engines did ----------------------------------------------------------

    def on_loading(self, name: str, done: int, total: int) -> None:
        now = self._loop.time()
        self._feed(self._scheduler.on_load_progress(now, name, done, total))

    def on_ready(self, name: str, measured_bytes: int) -> None:
        self._feed(self._scheduler.on_ready(self._loop.time(), name, measured_bytes))
        self.warm(name)

    def on_footprint(self, name: str, measured_bytes: int) -> None:
        self._feed(self._scheduler.on_footprint(self._loop.time(), name, measured_bytes))

    def on_released(self, call_id: int) -> None:
        self._feed(self._scheduler.on_released(self._loop.time(), call_id))
        self._quiet.set()

    def on_rejected(self) -> None:
        """One call less waits."""
        self._quiet.set()

    def on_turn_wanted(self, name: str) -> None:
        self._turns.want(name)

    def on_turn_over(self, name: str) -> None:
        self._turns.over(name)

    def _grant_turn(self, name: str, waited_s: float) -> None:
        self._slots[name].grant_turn()
        self._observer.turn_granted(name, waited_s)

    def on_load_failed(self, name: str, cause: str, stranded_bytes: int) -> None:
        now = self._loop.time()
        self._note_stranded(name, stranded_bytes)
        self._feed(self._scheduler.on_load_failed(now, name, cause, stranded_bytes))

    def on_exited(self, name: str, cause: str | None, stranded_bytes: int) -> None:
        """The process is reaped; `cause` is None when it was asked to go."""
        now = self._loop.time()
        self._note_stranded(name, stranded_bytes)
        self._feed(self._scheduler.on_exited(now, name, cause, stranded_bytes))
        self._quiet.set()

    def _note_stranded(self, name: str, stranded_bytes: int) -> None:
        if stranded_bytes:
            self._observer.stranded(name, stranded_bytes)

    # --- executing ----------------------------------------------------------------------------

    def _feed(self, effects: list[Effect]) -> None:
        """Executes effects in order; what executing one causes is queued behind the others."""
        if self._stopped:
            return
        outermost = not self._effects
        self._effects.extend(effects)
        while outermost and self._effects:
            try:
                self._execute(self._effects[0])
            except Exception:  # a fault with one model must not stop the others
                log.exception("could not execute %s", self._effects[0])
            self._effects.popleft()
        if outermost and self._wished:
            self._look_at_wishes()
        if outermost and self._moved:
            self._moved = False
            self.settle_standby()

    def settle_standby(self) -> None:
        """As many spares as there is room for now; while it drains, or stops, it stays as it is."""
        if not self._stopped and self._draining is None:
            kinds = {name: slot.spare_kind for name, slot in self._slots.items()}
            self._standby.settle(self._setup.standby, self.snapshot(), kinds)

    def _look_at_wishes(self) -> None:
        """A load that was asked for and is given up has no effect, only a reason to be shown."""
        for view in self.snapshot().models:
            if view.name in self._wished and not view.wished:
                self._wished.discard(view.name)
                if view.state not in (State.LOADING, State.READY):
                    self._observer.given_up(view.name, view.reason or "it was unloaded")

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Grant() | Reject() | Waiting():
                self._doer.tell_waiter(effect)
            case SetTimer():
                self._set_timer(effect.at)
            case Transition():
                self._moved = True
                self._observer.moved(effect)
            case Forgotten():
                del self._slots[effect.model]
                self._observer.forgotten(effect.model)
            case StartLoad() | CancelLoad() | Stop() | SetLimits() | CancelLeases():
                self._doer.tell_slot(effect)
            case _:
                assert_never(effect)

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._feed(self._scheduler.on_tick(self._loop.time()))
