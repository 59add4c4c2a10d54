"""CPU seconds per token of a serving worker, over those of the least a server could do.

The least is mlx-lm's `BatchGenerator.next()` and its detokenizer in a loop, in a process of its
own; the other side is a real engine process that gets its requests over the wire. Same model, same
batch, in turns, so that whatever else the machine does hits both.

`python -m tests.bench.engine_cpu MODEL STREAMS TOKENS` runs one bare loop and prints its cost.
"""

from __future__ import annotations

import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from demo.models import Cache
from engines import wire
from gateway.supervisor.process import engine_environment
from tests.bench.report import Line, at_most
from tests.fixtures.make_models import random_micro

LIMITS = wire.Limits(2**32, 2**30, 2**30, 0, 2**28)
READ_BYTES = 2**18
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """A model and how much it is made to say; `most` is the promised ratio."""

    name: str
    streams: int
    tokens: int
    repeats: int
    most: float


CASES = (
    Case("random-micro", streams=8, tokens=400, repeats=5, most=1.10),
    Case("smollm2-135m-f32", streams=4, tokens=32, repeats=3, most=1.05),
)


def lines(folder: Path) -> Iterator[Line]:
    for case in CASES:
        if case.name == "random-micro":
            model = random_micro(folder)
        else:
            model = Cache().ensure([case.name])[case.name]
        yield from _compare(case, model)


def _compare(case: Case, model: Path) -> Iterator[Line]:
    with Worker(model) as worker:
        worker.cost(case)  # the first batch pays for what the second finds
        pairs = [(_bare(case, model), worker.cost(case)) for _ in range(case.repeats)]
    bare = statistics.median(pair[0] for pair in pairs)
    ratio = statistics.median(served / least for least, served in pairs)
    what = f"{case.name}, {case.streams} streams"
    yield Line(f"bare loop CPU per token, {what}", 1e6 * bare, "us")
    yield at_most(f"serving worker over bare loop, {what}", ratio, "x", case.most)


def messages(stream: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Stream {stream}: tell me a long story about the sea."}]


class Worker:
    """A real engine process that serves one model, seen from the bench."""

    def __init__(self, model: Path) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._decoder = wire.events_decoder()
        self._events: list[wire.FromEngine] = []
        self._next_id = 1
        with theirs:
            environment = {
                **engine_environment(os.environ, {}),
                wire.FD_VARIABLE: str(theirs.fileno()),
                wire.TOKEN_VARIABLE: secrets.token_hex(8),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engines.worker"],
                env=environment,
                pass_fds=(theirs.fileno(),),
            )
        ours.settimeout(TIMEOUT_S)
        ours.sendall(wire.encode(wire.Load(wire.EngineSpec("m", "text", path=str(model)), LIMITS)))
        while not isinstance(self._event(), wire.Ready):
            pass

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait(TIMEOUT_S)

    def cost(self, case: Case, wanted: wire.Format = wire.Format()) -> float:  # noqa: B008  frozen
        """CPU seconds per token of one batch, prefill included."""
        process = psutil.Process(self._process.pid)
        before = _cpu(process)
        for stream in range(case.streams):
            request = wire.Generate(
                self._next_id + stream,
                messages(stream),
                wire.Sampling(temperature=0),
                max_tokens=case.tokens,
                format=wanted,
            )
            self._socket.sendall(wire.encode(request))
        self._next_id += case.streams
        tokens, ended = 0, 0
        while ended < case.streams:
            event = self._event()
            if isinstance(event, wire.Failed):
                raise RuntimeError(event.message)
            if isinstance(event, wire.Finished):
                ended += 1
                tokens += event.usage.completion_tokens
        return (_cpu(process) - before) / tokens

    def _event(self) -> wire.FromEngine:
        while not self._events:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise RuntimeError("the worker ended")
            self._events = self._decoder.feed(data)[::-1]
        return self._events.pop()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _bare(case: Case, model: Path) -> float:
    arguments = [str(model), str(case.streams), str(case.tokens)]
    output = subprocess.run(
        [sys.executable, "-m", "tests.bench.engine_cpu", *arguments],
        env=engine_environment(os.environ, {}),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return float(output.split()[-1])


def bare_loop(model: Path, streams: int, tokens: int) -> float:
    """CPU seconds per token of the bare loop in this process, prefill included."""
    from mlx_lm import load
    from mlx_lm.generate import BatchGenerator

    loaded, tokenizer = load(str(model))[:2]
    cost = 0.0
    for _ in range(2):  # the first batch pays for what the second finds
        prompts = [
            tokenizer.apply_chat_template(messages(stream), add_generation_prompt=True)
            for stream in range(streams)
        ]
        stop = [[token] for token in tokenizer.eos_token_ids]
        generator = BatchGenerator(loaded, stop_tokens=stop, prefill_batch_size=2)
        began, counted = time.process_time(), 0
        uids = generator.insert(prompts, max_tokens=[tokens] * streams)
        detokenizers = {uid: tokenizer.detokenizer for uid in uids}
        running = streams
        while running:
            for response in generator.next()[1]:
                detokenizers[response.uid].add_token(response.token)
                _ = detokenizers[response.uid].last_segment
                counted += 1
                running -= response.finish_reason is not None
        cost = (time.process_time() - began) / counted
        generator.close()
    return cost


if __name__ == "__main__":
    print(bare_loop(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
