"""A real `mlx-gateway serve` in a process of its own, with its own registry and state."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.harness.stream import Stream

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 60.0
WAIT_TIMEOUT_S = 30.0
POLL_S = 0.02

CHAT = "/v1/chat/completions"

Status = dict[str, Any]


class Daemon:
    """A running gateway. `url` has no trailing slash; `log` is everything it said so far."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, folder: Path) -> None:
        self.process = process
        self.url = url
        self.folder = folder

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self) -> httpx.AsyncClient:
        """To be used in `async with`: connections of its own, reused among its requests."""
        return httpx.AsyncClient(
            base_url=self.url, timeout=WAIT_TIMEOUT_S, trust_env=False, verify=False
        )

    async def get(self, path: str) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path)

    async def status(self, client: httpx.AsyncClient | None = None) -> Status:
        answer = await (client.get("/v1/status") if client else self.get("/v1/status"))
        answer.raise_for_status()
        status: Status = answer.json()
        return status

    async def model(self, name: str) -> dict[str, Any]:
        status = await self.status()
        return next(model for model in status["models"] if model["name"] == name)

    async def until(
        self, holds: Callable[[Status], object], timeout_s: float = WAIT_TIMEOUT_S
    ) -> Status:
        """The first status that `holds` accepts; fails with the last one seen otherwise."""
        deadline = time.monotonic() + timeout_s
        async with self.client() as client:
            while True:
                status = await self.status(client)
                if holds(status):
                    return status
                assert time.monotonic() < deadline, f"never came true; last status: {status}"
                await asyncio.sleep(POLL_S)

    async def until_model(self, name: str, **values: Any) -> dict[str, Any]:
        """As `until`: waits for one model's status to have these values, and returns it."""

        def found(status: Status) -> dict[str, Any] | None:
            model = next(model for model in status["models"] if model["name"] == name)
            return model if all(model[key] == value for key, value in values.items()) else None

        model = found(await self.until(found))
        assert model is not None
        return model

    async def chat(
        self,
        model: str,
        text: str = "hello",
        *,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> httpx.Response:
        """One answer, not streamed."""
        async with self.client() as client:
            return await client.post(CHAT, json=chat_body(model, text, **fields), headers=headers)

    @contextlib.asynccontextmanager
    async def stream(self, model: str, text: str = "hello", **fields: Any) -> AsyncIterator[Stream]:
        """One streamed answer; leaving the block early closes the connection."""
        body = chat_body(model, text, stream=True, **fields)
        async with self.client() as client, client.stream("POST", CHAT, json=body) as response:
            yield Stream(response)

    def engines(self) -> list[psutil.Process]:
        """The engine processes that are this daemon's children now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for its end; returns its exit code."""
        return self.process.wait(STOP_TIMEOUT_S)


def chat_body(model: str, text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run. A zombie has ended; that nobody has asked for its exit code is no life."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


# --- registries -----------------------------------------------------------------------------------

SCRIPTED_KEYS = frozenset(
    {
        *("load_s", "load_stall_at", "tokens_per_s", "prefill_s", "fail_loads", "exit_after"),
        *("hang_after", "freeze_after", "ignore_term", "stderr_flood", "deltas", "kv_gb_per_1k"),
        "vector_dim",
    }
)


def scripted(name: str, size_gb: float = 1.0, **options: Any) -> dict[str, Any]:
    """A registry entry of a scripted engine; options of the engine and keys of the entry mixed."""
    script = {key: options.pop(key) for key in list(options) if key in SCRIPTED_KEYS}
    return {
        "name": name,
        "engine": "scripted",
        "scripted": {"size_gb": size_gb, **script},
    } | options


def registry(
    *models: dict[str, Any],
    budget_gb: float = 10,
    server: dict[str, Any] | None = None,
    **manager: Any,
) -> dict[str, Any]:
    """A registry document; `manager` holds what differs from the defaults of a test.

    Nothing stays resident for long in a test unless it says so.
    """
    return {
        "manager": {"memory_budget_gb": budget_gb, "min_resident_s": 0, **manager},
        "server": server or {},
        "models": list(models),
    }


def script(*steps: Any, **options: Any) -> str:
    """A message that tells a scripted engine what to answer."""
    return json.dumps({"script": steps, **options})


def reply(words: int) -> str:
    """What a scripted engine with this number of `deltas` says."""
    return "".join(f"word{number} " for number in range(1, words + 1))


# --- processes ------------------------------------------------------------------------------------


@contextlib.contextmanager
def daemon(
    document: dict[str, Any] | str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Iterator[Daemon]:
    """Starts a gateway on a free port; at the end it and every engine of it are gone.

    It has to end with 0 when asked to, unless the test has ended it.
    """
    write(document, folder)
    address = folder / "state" / "run" / "address"
    address.unlink(missing_ok=True)  # of an earlier life that was killed
    process = start(folder, environment or {}, *flags)
    engines: list[psutil.Process] = []
    try:
        running = Daemon(process, await_address(process, address, folder / "log"), folder)
        yield running
        engines = running.engines()
        if process.poll() is None:
            running.signal(signal.SIGTERM)
            code = running.wait()
            assert code == 0, f"exit code {code}: {running.log}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
    assert not living(engines), f"engines outlived their gateway: {living(engines)}"


def write(document: dict[str, Any] | str, folder: Path) -> None:
    """A document, or a registry's text as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    text = document if isinstance(document, str) else yaml.safe_dump(document)
    (folder / "registry.yaml").write_text(text)


def command(folder: Path, *flags: str) -> list[str]:
    config = str(folder / "registry.yaml")
    return [*("-m", "gateway", "serve", "--port", "0", "--config", config), *flags]


def environ(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a gateway with its state in `folder`, and no other gateway's settings."""
    inherited = {key: value for key, value in os.environ.items() if "MLX_GATEWAY_" not in key}
    return {**inherited, "MLX_GATEWAY_STATE_DIR": str(folder / "state"), **extra}


def start(folder: Path, environment: Mapping[str, str], *flags: str) -> subprocess.Popen[bytes]:
    """Only the process, not waited for."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *command(folder, *flags)],
            stdout=log,
            stderr=log,
            env=environ(folder, environment),
        )


def await_address(process: subprocess.Popen[bytes], address: Path, log: Path) -> str:
    """The address that it writes once it listens."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not address.exists():
        assert process.poll() is None, f"did not start: {log.read_text()}"
        assert time.monotonic() < deadline, "did not write its address"
        time.sleep(POLL_S)
    return address.read_text().strip()
