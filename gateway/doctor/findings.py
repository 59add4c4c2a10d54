"""From what was seen of a machine to what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.registry.limits import limits
from gateway.registry.load import Loaded
from gateway.registry.units import format_size

LEAST_FILES = 4096
LEAST_DISK = 2**30

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What there is. Sizes in bytes; `disks` is what is free by folder.

    `url` is of a gateway that runs here and `answers` whether it does. `port_owner` is who else
    listens on the port that the registry names, `address_refused` why the system lets nobody listen
    there. `stale_service` is why the installed service file is out of date.
    """

    platform: str
    config: Path | None
    loaded: Loaded | None
    port: int
    port_owner: str | None
    url: str | None
    answers: bool
    draining: bool
    ffmpeg: str | None
    torch: str | None
    openblas: str | None
    cuda: bool
    open_files: int
    available_bytes: int
    disks: tuple[tuple[Path, int], ...]
    stale_service: str | None
    address_refused: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what, why it matters, and what to do."""

    id: str
    level: Level
    what: str
    why: str
    todo: str


def findings(seen: Surroundings) -> list[Finding]:
    """Everything that is wrong, errors first."""
    found = [
        *_registry(seen),
        *_port(seen),
        *_daemon(seen),
        *_memory(seen),
        *_tools(seen),
        *_system(seen),
    ]
    return sorted(found, key=lambda finding: finding.level)


def _registry(seen: Surroundings) -> Iterator[Finding]:
    if seen.config is None or seen.loaded is None:
        yield Finding(
            "no-registry",
            "warning",
            "there is no registry",
            "without one there are no models to serve",
            "run `mlx-gateway init`, or name a file with --config",
        )
        return
    if errors := seen.loaded.errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        yield Finding(
            "broken-registry",
            "error",
            f"the registry is broken: {errors[0]}{more}",
            "the gateway does not start with it, and a reload is refused",
            f"run `mlx-gateway check {seen.config}` and mend what it names",
        )
    for model in seen.loaded.models:
        if model.unavailable is not None and model.entry.of is None:
            yield Finding(
                "missing-weights",
                "warning",
                f"model {model.entry.name!r}: {model.unavailable}",
                "requests for it are refused until its files are there",
                "mend its path, mount its volume, or fetch it with `mlx-gateway model acquire`",
            )


def _port(seen: Surroundings) -> Iterator[Finding]:
    if seen.port_owner is not None:
        yield Finding(
            "port-in-use",
            "error",
            f"port {seen.port} is taken by {seen.port_owner}",
            "the gateway cannot listen on it",
            "stop that program, or choose another with server.port or --port",
        )
    if seen.address_refused is not None:
        yield Finding(
            "address-refused",
            "error",
            f"the system lets nobody listen on the registry's host and port {seen.port}: "
            f"{seen.address_refused}",
            "the gateway cannot start",
            "name an address of this machine in server.host, and a port from 1024 in server.port",
        )


def _daemon(seen: Surroundings) -> Iterator[Finding]:
    if seen.url is not None and not seen.answers:
        yield Finding(
            "no-answer",
            "error",
            f"the gateway at {seen.url} does not answer",
            "it has ended without cleaning up, or it hangs",
            "look into its log, and start it again",
        )
    elif seen.draining:
        yield Finding(
            "draining",
            "warning",
            f"the gateway at {seen.url} is shutting down",
            "it takes no new requests",
            "wait for its end, and start it again",
        )


def _memory(seen: Surroundings) -> Iterator[Finding]:
    if seen.loaded is None or seen.loaded.budget_bytes is None:
        return
    budget = seen.loaded.budget_bytes
    needs = {
        model.entry.name: limits(model, budget).charge_bytes
        for model in seen.loaded.models
        if model.size is not None and model.entry.of is None and model.entry.engine is None
    }
    too_large = [name for name, need in needs.items() if need > budget]
    if too_large:
        yield Finding(
            "too-little-memory",
            "error" if len(too_large) == len(needs) else "warning",
            f"larger than the budget of {format_size(budget)}: {', '.join(too_large)}",
            "requests for them are refused",
            "raise manager.memory_budget_gb, lower their kv_memory_gb, or take smaller models",
        )
    fitting = [need for name, need in needs.items() if name not in too_large]
    if fitting and not seen.answers and min(fitting) > seen.available_bytes:
        yield Finding(
            "memory-in-use",
            "warning",
            f"{format_size(seen.available_bytes)} of memory are free now, and the smallest model "
            f"needs {format_size(min(fitting))}",
            "the first load would push other programs out of memory",
            "end programs that take much memory",
        )


def _tools(seen: Surroundings) -> Iterator[Finding]:
    kinds = {model.entry.kind for model in seen.loaded.models} if seen.loaded else set()
    if seen.ffmpeg is None:
        needed = sorted({"transcription", "speech"} & kinds)
        yield Finding(
            "no-ffmpeg",
            "warning",
            "ffmpeg is not installed" + (f", and there is a {needed[0]} model" if needed else ""),
            "speech comes as wav and pcm alone, and only wav, mp3 and flac can be transcribed",
            "install it: `brew install ffmpeg` on a Mac, `apt-get install ffmpeg` on Debian",
        )
    if seen.torch is not None:
        yield Finding(
            "torch",
            "warning",
            f"torch is installed beside the engines, in {seen.torch}",
            "libraries that find it load it: about 700 MB in every engine process",
            "give the gateway an environment of its own: `pip uninstall torch` in this one",
        )
    if seen.platform == "linux" and not seen.cuda and seen.openblas is None:
        yield Finding(
            "no-openblas",
            "warning",
            "OpenBLAS is not installed",
            "MLX's own linear algebra on a CPU is about ten times slower with float32",
            "install it: `apt-get install libopenblas0-pthread` on Debian and Ubuntu",
        )


def _system(seen: Surroundings) -> Iterator[Finding]:
    if seen.open_files < LEAST_FILES:
        yield Finding(
            "few-files",
            "warning",
            f"a process may open {seen.open_files} files at most",
            "every client and every engine takes some; new connections wait when none is left",
            "raise the hard limit: `ulimit -Hn`, LimitNOFILE of the service, or limits.conf",
        )
    for folder, free in seen.disks:
        if free < LEAST_DISK:
            yield Finding(
                "disk-full",
                "warning",
                f"{format_size(free)} are free in {folder}",
                "uploads, stored responses, logs and caches need room there",
                "free some space, or move the state with MLX_GATEWAY_STATE_DIR",
            )
    if seen.stale_service is not None:
        yield Finding(
            "stale-service",
            "warning",
            f"the service file is out of date: {seen.stale_service}",
            "the service starts something else than what you run by hand",
            "run `mlx-gateway service install` again",
        )
