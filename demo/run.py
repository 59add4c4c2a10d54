"""Two models, room for one: serves both from one address and shows what happens to the memory.

`python -m demo.run` asks the first model, then the second, then the first again, through the
official OpenAI client; then one model of each other kind, in the same room. It prints the answers
as they arrive, load times and evictions, and a table of memory; then it stops the daemon. The exit
code is 0 only when every answer was right and everything was given back. With `--keep` the daemon
stays until Ctrl-C. With `--model` the other kinds are left out.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import openai
import psutil
from openai import OpenAI

from demo import kinds, memory
from demo.choice import Choice, choose, make, registry
from demo.daemon import Daemon, DaemonError, Watch
from demo.kinds import Part
from demo.memory import MIB, Moment
from demo.wheels import ModelError

QUESTION = "What is the capital of France? Answer in one sentence."
EXPECTED = "Paris"
_ANSWER_TIMEOUT_S = 300.0
_MAX_TOKENS = 24


class Story:
    """The demo's run against one daemon; collects what was measured and what went wrong."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._client = OpenAI(
            base_url=f"{daemon.url}/v1",
            api_key="none is needed on this machine",
            timeout=_ANSWER_TIMEOUT_S,
            max_retries=0,
        )
        self._engine: psutil.Process | None = None
        self.moments: list[Moment] = []
        self.problems: list[str] = []

    def measure(self, label: str) -> dict[str, Any]:
        status: dict[str, Any] = self._daemon.get("/v1/status")
        self.moments.append(memory.take(label, status, self._daemon.process.pid))
        return status

    def ask(self, model: str, *, stream: bool) -> None:
        """One question to one model, with what the gateway did to answer it."""
        print(f"\n{model} ({'streamed' if stream else 'not streamed'}): {QUESTION}\n  ", end="")
        answer = self._streamed if stream else self._whole
        watch = Watch(self._daemon)
        began = time.monotonic()
        with watch.running():
            text, first_s = answer(model, began)
        print(f"\n  first text after {first_s:.1f} s, all after {time.monotonic() - began:.1f} s")
        _say_moves(watch, model)
        if EXPECTED not in text:
            self.problems.append(f"{model} answered {text!r}, without {EXPECTED!r}")
        self._check_residency(model, self.measure(f"{model} answered"))

    def show(self, part: Part) -> None:
        """One thing that one kind of model does; what goes wrong with it ends nothing else."""
        name = part.served.name
        print(f"\n{name} ({part.kind}): {part.does}")
        if part.missing:
            print(f"  not shown: it needs the Python packages {', '.join(part.missing)}")
            return
        watch = Watch(self._daemon)
        began = time.monotonic()
        with watch.running():
            try:
                self.problems += part.tell(self._client, name)
            except openai.OpenAIError as error:
                self.problems.append(f"{name}: {type(error).__name__}: {error}")
        print(f"  all after {time.monotonic() - began:.1f} s")
        _say_moves(watch, name)
        held = self.measure(f"{name} answered")["memory"]
        if held["committed_bytes"] > held["budget_bytes"]:
            self.problems.append(f"after {name} answered, more is reserved than the budget holds")

    def _streamed(self, model: str, began: float) -> tuple[str, float]:
        text, first_s = "", 0.0
        with self._client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=_MAX_TOKENS,
            stream=True,
        ) as chunks:
            for chunk in chunks:
                delta = chunk.choices[0].delta.content if chunk.choices else None
                if delta:
                    first_s = first_s or time.monotonic() - began
                    text += delta
                    print(delta, end="", flush=True)
        return text, first_s

    def _whole(self, model: str, began: float) -> tuple[str, float]:
        completion = self._client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=_MAX_TOKENS,
        )
        text = completion.choices[0].message.content or ""
        print(text, end="")
        return text, time.monotonic() - began

    def _check_residency(self, model: str, status: dict[str, Any]) -> None:
        """One engine, the one asked; the one before is gone; the ledger charges for one alone.

        The system's free memory is shown and not checked: other programs move it too.
        """
        alive = {entry["name"]: entry for entry in status["models"] if entry["pid"]}
        if list(alive) != [model]:
            self.problems.append(f"after {model} answered, resident: {', '.join(alive) or 'none'}")
            return
        entry, committed = alive[model], status["memory"]["committed_bytes"]
        if committed != entry["charge_bytes"]:
            self.problems.append(
                f"the ledger holds {committed / MIB:,.0f} MiB for {model}, "
                f"whose charge is {entry['charge_bytes'] / MIB:,.0f} MiB"
            )
        before, self._engine = self._engine, psutil.Process(entry["pid"])
        if before is not None and before != self._engine and before.is_running():
            self.problems.append(f"the engine process {before.pid} outlived its eviction")


def _say_moves(watch: Watch, model: str) -> None:
    """What the gateway did to answer."""
    if (load_s := watch.load_seconds(model)) is not None:
        print(f"  loaded in {load_s:.1f} s")
    for name in watch.evicted():
        print(f"  evicted to make room: {name}")


def tell(story: Story, first: Choice, second: Choice, parts: Sequence[Part]) -> None:
    """First, second, first again: each needs the other's memory. Then whatever else there is."""
    story.measure("nothing loaded")
    story.ask(first.name, stream=True)
    story.ask(second.name, stream=False)
    story.ask(first.name, stream=True)
    for part in parts:
        story.show(part)


def how_to_call(url: str, model: str) -> str:
    return f"""
The daemon stays at {url} until Ctrl-C. To call it:

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  client.chat.completions.create(
      model="{model}", messages=[{{"role": "user", "content": "Hello"}}]
  )

  curl {url}/v1/status
"""


def serve_and_tell(
    first: Choice, second: Choice, parts: Sequence[Part] = (), *, keep: bool
) -> list[str]:
    """The whole demo; returns what went wrong. Raises `DaemonError`, `openai.OpenAIError`."""
    with tempfile.TemporaryDirectory(prefix="mlx-gateway-demo-") as folder:
        scratch = Path(folder)
        config = scratch / "registry.yaml"
        others = [part.served for part in parts]
        config.write_text(registry(first, second, others), encoding="utf-8")
        print(f"\nThe registry:\n\n{config.read_text(encoding='utf-8')}")
        daemon = Daemon.start(config, scratch)
        print(f"The daemon answers at {daemon.url}, {daemon.start_s:.1f} s after its start.")
        story = Story(daemon)
        try:
            tell(story, first, second, parts)
            if keep:
                _keep(daemon, first.name)
        except (OSError, openai.OpenAIError) as error:
            story.problems.append(f"{type(error).__name__}: {error}")
            story.problems.append(f"the end of the daemon's log:\n{daemon.log_tail()}")
        finally:
            left = daemon.stop()
        story.problems += left
        story.moments.append(memory.after_stop("daemon stopped"))
        print(f"\n{memory.table(story.moments)}")
        if not left:
            print("\nThe daemon stopped on SIGTERM with exit code 0; no process is left.")
        return story.problems


def _other_kinds() -> Sequence[Part]:
    """Raises `ModelError` where a model of theirs cannot be made."""
    make(kinds.MADE)
    return kinds.parts()


def _keep(daemon: Daemon, model: str) -> None:
    print(how_to_call(daemon.url, model))
    try:
        daemon.process.wait()
    except KeyboardInterrupt:
        print("\nstopping ...")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.run", description=__doc__)
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        help="serve this one too: a folder, or a Hugging Face id, which is fetched; up to two",
    )
    parser.add_argument("--keep", action="store_true", help="leave the daemon up until Ctrl-C")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    # A proxy set for the outside world must not see what goes to this machine.
    os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")
    try:
        first, second = choose(options.model)
        parts = () if options.model else _other_kinds()
        problems = serve_and_tell(first, second, parts, keep=options.keep)
    except (ModelError, DaemonError) as error:
        problems = [str(error)]
    except KeyboardInterrupt:
        return 130
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
