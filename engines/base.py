"""What the worker asks of an engine: one object, used by one thread, advanced step by step.

The worker's work thread is the only caller of everything here, so an engine needs no locks. It
never blocks for longer than one step: a decode step, one prefill chunk, one load stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engines import wire

MOST_CHOICES = 128
MOST_LOGPROBS = 100
"""Bounds of what one request may cost; dialects may set lower ones."""


class EngineError(Exception):
    """A call that cannot be served; it ends with `Failed(code, message, retryable)`."""

    def __init__(self, code: wire.FailureCode, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code: wire.FailureCode = code
        self.retryable = retryable


def check_request(request: wire.Generate, *, constrains: bool = False) -> None:
    """Raises `EngineError` for numbers out of bounds.

    Also for what would need a grammar, unless the engine `constrains` answers.
    """
    bounds = (("n", request.n, 1, MOST_CHOICES), ("logprobs", request.logprobs, 0, MOST_LOGPROBS))
    for name, value, least, most in bounds:
        if value is not None and not least <= value <= most:
            raise EngineError(
                "invalid_request", f"{name} is {value}; it must be from {least} to {most}"
            )
    if constrains:
        return
    choice = request.tool_choice
    if choice.mode in ("required", "named"):
        wanted = f"the tool {choice.name!r}" if choice.mode == "named" else "a tool call"
        raise EngineError(
            "tool_choice_unsupported",
            f"{wanted} cannot be forced: this model decides itself whether it calls a tool;"
            " use tool_choice auto or none",
        )
    if request.format.kind != "text":
        raise EngineError(
            "unsupported",
            f"an answer in the format {request.format.kind!r} cannot be promised: this model's"
            " output is not constrained; ask for the format in the prompt instead",
        )


class LoadError(Exception):
    """The model cannot be loaded; the message tells the operator why."""


Emitted = wire.CallEvent | wire.WantTurn | wire.TurnOver
Emit = Callable[[Emitted], None]
"""Queues one event for the gateway; what one step emits travels in one write."""

Report = Callable[[wire.Loading], None]


class Engine(Protocol):
    """One loaded model and the calls running on it."""

    def load(self, report: Report) -> wire.Ready:
        """Loads the model, reporting each stage before it starts. Raises `LoadError`."""

    def submit(self, request: wire.Request) -> None:
        """Takes a call in; its events follow from `step`. Raises `EngineError`, taking nothing."""

    def credit(self, call_id: int, nbytes: int) -> None:
        """The client of a call that sends `Bytes` by credit has taken so many."""

    def take_turn(self) -> None:
        """The gateway grants the turn that a `WantTurn` asked for."""

    def answer(self, question: wire.Ask) -> wire.Answer:
        """Answers a small question at once, beside the calls. Raises `EngineError`."""

    def cancel(self, call_id: int) -> None:
        """Ends a call with `Failed(code="cancelled")`; an unknown id is not an error."""

    def step(self) -> None:
        """Does one bounded piece of work for the calls at hand. Only called when `busy`."""

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""

    @property
    def running(self) -> int:
        """Calls that are prefilling or decoding."""

    @property
    def waiting(self) -> int:
        """Calls submitted and not started."""

    def idle(self) -> None:
        """Called once when nothing has run for a few seconds: give back what can be given back."""

    def background(self) -> float | None:
        """Does a little of what could wait until there are no calls.

        Returns seconds until it has more to do, 0 for at once, None for not before the next call.
        """

    def set_limits(self, limits: wire.Limits) -> None:
        """Applies new byte limits at once."""

    def memory(self) -> wire.Memory:
        """Bytes in use by class, without `process_bytes`, which the worker adds."""

    def prompt_cache(self) -> wire.PromptCacheStats:
        """The prompt cache's counters since load."""

    def features(self) -> wire.FeatureCacheStats:
        """The counters of what is kept of images, since load."""

    def close(self) -> None:
        """Drops calls, caches and model; the process ends after it."""


class Plain:
    """What engines say that have no such thing: the parts of `Engine` that few need."""

    def credit(self, call_id: int, nbytes: int) -> None:
        """No call of this engine sends by credit."""

    def take_turn(self) -> None:
        """This engine never asks for one."""

    def idle(self) -> None:
        """Nothing is kept that could be given back."""

    def background(self) -> float | None:
        """Nothing here could wait."""
        return None

    def set_limits(self, limits: wire.Limits) -> None:
        """Nothing here is bounded by them."""

    def prompt_cache(self) -> wire.PromptCacheStats:
        return wire.PromptCacheStats()

    def features(self) -> wire.FeatureCacheStats:
        return wire.FeatureCacheStats()


def refuse_kind(request: wire.Request, what: str) -> EngineError:
    """The error of a request that a model is not for; `what` is what it is for."""
    asked = type(request).__name__
    return EngineError("unsupported", f"this model is for {what}; it cannot serve {asked}")
