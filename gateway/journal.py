"""What is written down of everything the supervisor does: log lines, metrics, events, pids.

The journal is the only writer of the event bus, and owns the list of living engine pids.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from engines import wire
from gateway.api.events import EventBus
from gateway.api.views import unix_time
from gateway.metrics import Metrics
from gateway.registry.find import Model
from gateway.registry.remembered import Remembered
from gateway.residency import (
    CancelLeases,
    Reject,
    SetLimits,
    Snapshot,
    State,
    Stop,
    Transition,
)
from gateway.residency.text import calls, size
from gateway.rundir import RunDir
from gateway.served import Live
from gateway.supervisor.engine import Exit
from gateway.supervisor.process import record_of
from gateway.supervisor.tasks import Tasks
from gateway.threads import in_thread

log = logging.getLogger("gateway.models")

THRASH_S = 60.0
"""A model that loads again so soon after it had to leave is moved back and forth for nothing."""

FORCED = frozenset({"evicted", "preempted", "pressure", "overrun"})
"""The reasons to leave that are not the model's own affair."""

STARTING = "starting the process"
"""What a load does until its engine names a stage."""

RELOAD_LINES = 50
"""An event of a reload says no more than so many lines; the log has them all."""


class Journal:
    """The supervisor's observer, and the reloader's."""

    def __init__(
        self,
        metrics: Metrics,
        live: Live,
        run_dir: RunDir,
        sizes: Remembered,
        tasks: Tasks,
        bus: EventBus,
    ) -> None:
        self._metrics = metrics
        self._live = live
        self._run_dir = run_dir
        self._sizes = sizes
        self._tasks = tasks
        self._bus = bus
        self._hear: Callable[[str, bytes], None] = lambda model, data: None
        self._saving: asyncio.Task[None] | None = None
        self._unsaved = False
        self._pids: dict[int, float] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._pids_changed = False
        self._pids_unwritten = False
        self._ready_at: dict[str, float] = {}
        self._stages: dict[str, tuple[str, float]] = {}
        self._left_at: dict[str, float] = {}
        self._fallen: set[str] = set()
        self._memory: tuple[str, str | None] = ("normal", None)
        metrics.know(_names(live))

    def pass_on(self, hear: Callable[[str, bytes], None]) -> None:
        """From now on `hear` gets what engines write to stderr, by model."""
        self._hear = hear

    # --- what the scheduler decided -----------------------------------------------------------

    def moved(self, transition: Transition) -> None:
        name, frm, to, cause = transition.model, transition.frm, transition.to, transition.cause
        if to is State.LOADING:
            self._load_began(name)
        elif to is State.DRAINING and cause == "preempted":
            self._metrics.preemptions.labels(name).inc()
        level = logging.WARNING if to is State.FAILED else logging.INFO
        log.log(level, "model %s: %s -> %s: %s", name, frm, to, cause, extra=_about(name))
        self._bus.publish("transition", name, **{"from": frm, "to": to, "cause": cause})

    def _load_began(self, name: str) -> None:
        now = time.monotonic()
        self._metrics.loads.labels(name).inc()
        self._stages[name] = (STARTING, now)
        left_at = self._left_at.pop(name, None)
        if left_at is not None and now - left_at <= THRASH_S:
            self._metrics.thrash.labels(name).inc()
        if name in self._fallen:
            self._fallen.discard(name)
            self._metrics.restarts.labels(name).inc()

    def _stage_over(self, name: str) -> None:
        """Books the time of a load's present stage, where there is a load."""
        stage, since = self._stages.pop(name, ("", 0.0))
        if stage:
            self._metrics.loaded_for(name, stage, time.monotonic() - since)

    def granted(self, model: str, asked: str, waited_s: float) -> None:
        self._metrics.queue_wait.labels(asked).observe(waited_s)
        log.debug("model %s: a call is served after %.3f s", model, waited_s, extra=_about(model))

    def refused(self, model: str, asked: str, reject: Reject) -> None:
        code, message = reject.refusal.kind.code, reject.refusal.message
        self._metrics.refusals.labels(asked, code).inc()
        log.info(
            "model %s: refused call %s: %s: %s",
            model,
            reject.request_id,
            code,
            message,
            extra=_about(model),
        )
        self._bus.publish("refused", model, call=reject.request_id, code=code, message=message)

    def given_up(self, model: str, reason: str) -> None:
        """A load that an operator or `preload` asked for will not be."""
        self._metrics.loads_given_up.labels(model).inc()
        log.info("model %s: will not be loaded as asked: %s", model, reason, extra=_about(model))
        self._bus.publish("given_up", model, reason=reason)

    def stopped(self, stop: Stop) -> None:
        self._metrics.evictions.labels(stop.model, stop.reason).inc()
        ready_at = self._ready_at.pop(stop.model, None)
        age = None if ready_at is None else round(time.monotonic() - ready_at, 3)
        if age is not None:
            self._metrics.age_at_eviction.labels(stop.model).observe(age)
        if stop.reason in FORCED:
            self._left_at[stop.model] = time.monotonic()
        self._bus.publish("evicted", stop.model, reason=stop.reason, age_s=age)

    def ended(self, ended: CancelLeases) -> None:
        """Running calls were ended to free their model."""
        code, message, count = ended.reason.kind.code, ended.reason.message, len(ended.request_ids)
        self._metrics.calls_ended.labels(ended.model, code).inc(count)
        log.warning(
            "model %s: ended %s: %s", ended.model, calls(count), message, extra=_about(ended.model)
        )
        self._bus.publish("calls_ended", ended.model, count=count, code=code, message=message)

    def limited(self, limits: SetLimits) -> None:
        model, limit = limits.model, limits.prompt_cache_bytes
        if limit == 0:
            self._metrics.shrinks.labels(model).inc()
        log.info("model %s: its prompt cache may take %s", model, size(limit), extra=_about(model))
        self._bus.publish("limits", model, prompt_cache_bytes=limit)

    def pinned(self, model: str, pinned: bool, until: float | None) -> None:
        """`until` is on the monotonic clock, None for a pin without an end and for none."""
        moment = unix_time(until)
        end = "" if until is None else f" for {until - time.monotonic():.0f} s"
        log.info(
            "model %s: %s%s",
            model,
            "pinned" if pinned else "not pinned any more",
            end,
            extra=_about(model),
        )
        self._bus.publish("pin", model, pinned=pinned, until=moment)

    def forgotten(self, model: str) -> None:
        log.info("model %s: is gone, as the registry says", model, extra=_about(model))
        self._bus.publish("removed", model)
        self._bus.end_model(model)
        self._ready_at.pop(model, None)
        self._left_at.pop(model, None)
        self._fallen.discard(model)

    # --- what engines did ---------------------------------------------------------------------

    def spawned(self, pid: int) -> None:
        record = record_of(pid)
        if record is not None:
            self._pids[pid] = record[1]
            self._write_pids()

    def reaped(self, pid: int) -> None:
        """A spare process is gone that never had a model."""
        if self._pids.pop(pid, None) is not None:
            self._write_pids()

    def said(self, model: str, data: bytes) -> None:
        """On stderr; no bytes mean that the process is gone."""
        self._hear(model, data)

    def loading(self, model: str, progress: wire.Loading) -> None:
        if self._stages.get(model, ("",))[0] != progress.stage:
            self._stage_over(model)
            self._stages[model] = (progress.stage, time.monotonic())
            log.debug("model %s: %s", model, progress.stage, extra=_about(model))
        self._bus.publish(
            "load_progress",
            model,
            stage=progress.stage,
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
        )

    def loaded(self, model: Model, ready: wire.Ready, seconds: float) -> None:
        name = model.entry.name
        self._ready_at[name] = time.monotonic()
        self._stage_over(name)
        self._metrics.load_seconds.labels(name).observe(seconds)
        log.info("model %s: ready after %.2f s", name, seconds, extra=_about(name))
        self._bus.publish("loaded", name, seconds=round(seconds, 3))
        if self._sizes.record(model, ready.memory, seconds):
            self._unsaved = True
            if self._saving is None:
                self._saving = self._tasks.supervised("saving sizes", self._save(), self._not_saved)

    async def _save(self) -> None:
        """Until everything is saved: a load can end while the one before is written down."""
        while self._unsaved:
            self._unsaved = False
            failed = self._sizes.failed_saves
            problem = await in_thread(self._sizes.save)
            if problem is not None:
                log.warning("%s", problem)
            self._metrics.failed_writes.labels("sizes").inc(self._sizes.failed_saves - failed)
        self._saving = None

    def _not_saved(self, error: Exception) -> None:
        self._saving = None

    def finished(self, asked: str, finished: wire.Finished) -> None:
        """A call is complete; of its tokens only the first was not waited for by another."""
        usage, timings = finished.usage, finished.timings
        tokens = self._metrics.tokens
        tokens.labels(asked, "prompt").inc(usage.prompt_tokens)
        tokens.labels(asked, "cached").inc(usage.cached_tokens)
        tokens.labels(asked, "completion").inc(usage.completion_tokens)
        tokens.labels(asked, "reasoning").inc(usage.reasoning_tokens)
        self._metrics.prefill.labels(asked).observe(timings.prefill_s)
        if usage.completion_tokens > 1:
            between = timings.decode_s / (usage.completion_tokens - 1)
            self._metrics.inter_token.labels(asked).observe(between)

    def turn_granted(self, model: str, waited_s: float) -> None:
        self._metrics.prefill_turn_wait.labels(model).observe(waited_s)

    def exited(self, model: str, pid: int | None, exit_: Exit) -> None:
        if pid is not None and self._pids.pop(pid, None) is not None:
            self._write_pids()
        self._stage_over(model)
        self._ready_at.pop(model, None)
        if exit_.how != "asked":
            self._fallen.add(model)
        self._metrics.exits.labels(model, exit_.how).inc()
        if exit_.how == "load_failed":
            self._metrics.load_failures.labels(model).inc()
        level = logging.INFO if exit_.how == "asked" else logging.ERROR
        log.log(
            level,
            "model %s: engine pid %s %s: %s",
            model,
            pid,
            exit_.how,
            exit_.cause,
            extra=_about(model),
        )
        self._bus.publish("engine_exit", model, pid=pid, how=exit_.how, cause=exit_.cause)

    def stranded(self, model: str, stranded_bytes: int) -> None:
        """Memory of an ended process that the system has not given back in time."""
        log.warning(
            "model %s: %s of its memory have not come back",
            model,
            size(stranded_bytes),
            extra=_about(model),
        )
        self._bus.publish("stranded", model, bytes=stranded_bytes)

    def _write_pids(self) -> None:
        """Soon, and beside the loop, which must not wait for a disk."""
        self._pids_changed = True
        if self._keeping is None:
            self._keeping = self._tasks.supervised("keeping pids", self._keep_pids(), self._unkept)

    async def _keep_pids(self) -> None:
        while self._pids_changed:
            self._pids_changed = False
            try:
                await in_thread(self._run_dir.write_engines, sorted(self._pids.items()))
            except OSError as error:
                # Serving goes on; only the sweep after a kill -9 of the gateway would miss some.
                self._metrics.failed_writes.labels("engines").inc()
                if not self._pids_unwritten:
                    folder = self._run_dir.path
                    log.warning("cannot keep the engines' pids in %s: %s", folder, error)
                self._pids_unwritten = True
            else:
                self._pids_unwritten = False
        self._keeping = None

    def _unkept(self, error: Exception) -> None:
        self._keeping = None

    # --- the whole gateway --------------------------------------------------------------------

    def reloaded(self, outcome: str, lines: Iterable[str]) -> None:
        """A reload has been applied, changed nothing, or been refused."""
        self._metrics.know(_names(self._live))
        self._metrics.reloads.labels(outcome).inc()
        self._metrics.registry_read(good=outcome != "refused")
        level = logging.ERROR if outcome == "refused" else logging.INFO
        listed = list(lines)
        for line in listed:
            log.log(level, "reload: %s", line)
        self._bus.publish("reload", result=outcome, lines=listed[:RELOAD_LINES])

    def memory(self, snapshot: Snapshot) -> None:
        """Looks, and writes down what has changed since the last time."""
        pressure, overcommitted = snapshot.pressure, snapshot.ledger.overcommitted
        if (pressure, overcommitted) == self._memory:
            return
        self._memory = (pressure, overcommitted)
        calm = pressure == "normal" and overcommitted is None
        cause = overcommitted or "the models fit in the budget"
        log.log(
            logging.INFO if calm else logging.WARNING, "memory: pressure %s; %s", pressure, cause
        )
        self._bus.publish("memory", pressure=pressure, overcommitted=overcommitted)

    def draining(self, seconds: float) -> None:
        """No new calls from now on; running ones have so long."""
        log.info("draining: no new requests; running ones have %g s", seconds)
        self._bus.publish("draining", seconds=seconds)

    def closed(self) -> None:
        """Nothing more will happen: event streams end with this."""
        self._bus.publish("end")
        self._bus.close()


def _about(model: str) -> dict[str, dict[str, str]]:
    """For `extra`: whoever looks for the lines of one model finds this one."""
    return {"fields": {"model": model}}


def _names(live: Live) -> set[str]:
    return {model.entry.name for model in live.now.router.models}
