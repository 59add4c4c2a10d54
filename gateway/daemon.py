"""The composition root: builds everything once, serves, drains, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway import __version__, app
from gateway.api.admin import Admin
from gateway.api.events import EventBus, Events
from gateway.api.logs import Logs
from gateway.api.media import Media
from gateway.api.operate import Operate
from gateway.api.responses_disk import Disk
from gateway.awake import Awake, caffeinate
from gateway.errors import Draining, Refusal
from gateway.journal import Journal
from gateway.logs.setup import Logging
from gateway.metrics import Metrics
from gateway.registry.last_good import LastGood
from gateway.registry.places import Places, last_good_path
from gateway.registry.problems import Problem
from gateway.registry.remembered import Remembered
from gateway.reload import Read, Reloader, setup
from gateway.rundir import RunDir
from gateway.security.media import sweep
from gateway.served import Live, Served
from gateway.server import Server as Listener
from gateway.supervisor import prompt_folders
from gateway.supervisor.probe import Probe, ScriptedProbe, SystemProbe
from gateway.supervisor.process import end_survivors
from gateway.supervisor.prompt_folders import disk_cache
from gateway.supervisor.supervisor import Supervisor
from gateway.supervisor.tasks import Tasks

log = logging.getLogger("gateway")

DRAIN_RETRY_S = 5.0
MEMORY_EVERY_S = 2.0
AWAKE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `serve` was told, checked: what to serve, from which file, where to keep state.

    `read` loads the registry again, flags and variables applied; None when there is no file.
    `refused` is what is wrong with the file where `served` is not what it says.
    """

    served: Served
    config: Path | None
    read: Callable[[], Read] | None
    places: Places
    refused: tuple[Problem, ...] = ()


async def serve(plan: Plan, listener: socket.socket, run_dir: RunDir) -> None:
    """Serves until SIGTERM or SIGINT, then drains. The run directory's lock is already held."""
    survivors = end_survivors(run_dir.engines())
    if survivors:
        log.warning("ended engines of an earlier life: pids %s", survivors)
    logs = _logging(plan)
    try:
        gateway = _Gateway(plan, run_dir, logs)
        with _signals(gateway.reloader) as asked:
            _announce(run_dir, _url(listener))
            await gateway.run(listener, asked)
        run_dir.clear()
        log.info("stopped")
    finally:
        logs.close()


class _Gateway:
    """Every part of a gateway, built once and run once."""

    def __init__(self, plan: Plan, run_dir: RunDir, logs: Logging) -> None:
        self._plan = plan
        self._live = live = Live(plan.served)
        self._tasks = tasks = Tasks()
        metrics, bus = Metrics(), EventBus()
        metrics.count_lost_lines(logging.getLogger(), lambda: logs.files.lost)
        metrics.registry_read(good=not plan.refused)
        probe, sizes = _probe(plan.served), _sizes(plan)
        self._journal = Journal(metrics, live, run_dir, sizes, tasks, bus)
        self._journal.pass_on(logs.heard)
        self._supervisor = Supervisor(setup(plan.served), probe, sizes, tasks, self._journal)
        supervisor = self._supervisor
        self.reloader = _reloader(plan, live, supervisor, self._journal, logs)
        self._log_route = Logs(live, tasks, logs.book)
        self._disk = _disk(plan)
        control = app.Control(
            Operate(live, supervisor, probe, metrics, self.reloader),
            Admin(live, supervisor, self.reloader, tasks, bus),
            Events(live, supervisor, tasks, bus),
            self._log_route,
            self._disk,
            _media(run_dir),
        )
        self._asgi = app.build(live, supervisor, tasks, metrics, control)

    async def run(self, listener: socket.socket, asked: _Asked) -> None:
        """Until it is asked to stop, and until everything has ended that it started."""
        stop = asyncio.Event()
        supervisor, live = self._supervisor, self._live
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(Listener(self._asgi, listener).run(stop))
                group.create_task(_look_at_memory(supervisor, self._journal, stop))
                group.create_task(_stay_awake(live, supervisor, stop))
                group.create_task(self.reloader.run(self._plan.config, stop))
                group.create_task(_sweep_prompts(self._plan.served))
                supervisor.preload()
                await asked.term.wait()
                drain_s = live.now.server.drain_s
                self._journal.draining(drain_s)
                await _drain(supervisor, drain_s, asked)
                self._journal.closed()
                self._log_route.close()
                stop.set()
        finally:
            await supervisor.shutdown()
            await _close(self._tasks, self._disk)


def _sizes(plan: Plan) -> Remembered:
    sizes = Remembered(plan.places.state / "sizes.json")
    if (problem := sizes.read()) is not None:
        log.warning("%s", problem)
    return sizes


def _logging(plan: Plan) -> Logging:
    server = plan.served.server
    logs = Logging(plan.places.logs / "engines")
    logs.begin(Path(server.log_file).expanduser() if server.log_file else None, server.log_format)
    return logs


def _reloader(
    plan: Plan, live: Live, supervisor: Supervisor, journal: Journal, logs: Logging
) -> Reloader:
    last_good = LastGood(last_good_path(plan.places))
    reloader = Reloader(plan.read, live, supervisor, journal, last_good, logs.use)
    if plan.refused:
        reloader.refused_at_start(plan.refused)
    return reloader


def _disk(plan: Plan) -> Disk | None:
    server = plan.served.server
    if server.responses_store == "memory":
        return None
    return Disk(plan.places.state / "responses.sqlite", server.responses_mb * 2**20)


def _media(run_dir: RunDir) -> Media:
    """Images of a gateway that was killed are removed here."""
    folder = run_dir.path / "media"
    try:
        sweep(folder)
    except OSError as error:
        log.warning(
            "requests with images will be refused: %s cannot be used (%s)",
            folder,
            error.strerror or error,
        )
        return Media(None)
    return Media(folder)


async def _close(tasks: Tasks, disk: Disk | None) -> None:
    await tasks.close()
    if disk is not None:
        await asyncio.to_thread(disk.close)


def _announce(run_dir: RunDir, url: str) -> None:
    """Raises `Unwritable` when the address cannot be kept."""
    run_dir.write_address(url)
    with contextlib.suppress(OSError):  # a full disk under our output is no reason not to serve
        print(f"mlx-gateway {__version__} listening on {url}", flush=True)  # noqa: T201


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _probe(served: Served) -> Probe:
    """A registry of scripted engines only claims memory, so the machine's figures say nothing."""
    models = served.router.models
    if models and all(model.entry.engine == "scripted" for model in models):
        return ScriptedProbe()
    return SystemProbe()


async def _look_at_memory(supervisor: Supervisor, journal: Journal, stop: asyncio.Event) -> None:
    while not stop.is_set():
        supervisor.look_at_memory()
        journal.memory(supervisor.snapshot())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEMORY_EVERY_S):
                await stop.wait()


async def _sweep_prompts(served: Served) -> None:
    """What has grown too old on disk; engines see to their own files only."""
    if served.prompts is None:
        return
    told = (disk_cache(served.prompts, model) for model in served.router.models)
    ages_s = {Path(disk.folder): disk.max_age_s for disk in told if disk is not None}
    try:
        removed = await asyncio.to_thread(prompt_folders.sweep, served.prompts, ages_s)
    except OSError as error:
        log.warning("cannot look for old prompts in %s: %s", served.prompts, error)
        return
    if removed:
        log.info("removed %d prompts from disk that nobody has used for long", removed)


async def _stay_awake(live: Live, supervisor: Supervisor, stop: asyncio.Event) -> None:
    awake = Awake(caffeinate())
    try:
        while not stop.is_set():
            await awake.look(busy=supervisor.serving and live.now.server.prevent_sleep)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AWAKE_EVERY_S):
                    await stop.wait()
    finally:
        await awake.close()


async def _drain(supervisor: Supervisor, drain_s: float, asked: _Asked) -> None:
    """Running calls get `drain_s`, or until a second SIGINT; what is left ends with an error."""
    refusal = Refusal(Draining, "the gateway is shutting down", DRAIN_RETRY_S)
    supervisor.drain(refusal)
    drained = asyncio.ensure_future(supervisor.drained())
    hurry = asyncio.ensure_future(asked.hurry.wait())
    try:
        await asyncio.wait([drained, hurry], timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        drained.cancel()
        hurry.cancel()
    supervisor.end_calls(refusal)


@dataclass(frozen=True, slots=True)
class _Asked:
    term: asyncio.Event
    hurry: asyncio.Event


@contextlib.contextmanager
def _signals(reloader: Reloader) -> Iterator[_Asked]:
    """SIGTERM and SIGINT ask to stop, a second SIGINT to hurry, SIGHUP to reload."""
    loop = asyncio.get_running_loop()
    asked = _Asked(asyncio.Event(), asyncio.Event())

    def on_interrupt() -> None:
        if asked.term.is_set():
            asked.hurry.set()
        asked.term.set()

    loop.add_signal_handler(signal.SIGTERM, asked.term.set)
    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    loop.add_signal_handler(signal.SIGHUP, reloader.ask, "SIGHUP")
    try:
        yield asked
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGHUP)
