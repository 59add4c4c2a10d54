"""Decides from an engine's signs of life whether it is stuck. Pure: every method is told the time.

A heartbeat comes from the engine's I/O thread and proves only that the process runs; the step
counter it carries proves that the work thread does. A load has to report progress, not to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines import wire

HANDSHAKE_TIMEOUT_S = 60.0
HEARTBEAT_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long no progress may last, in seconds."""

    load_timeout_s: float = 120.0
    hang_timeout_s: float = 120.0
    first_step_timeout_s: float = 600.0


class Watch:
    """Follows one engine process from its start on; `overdue` is the verdict."""

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience = patience
        self._phase = "start"
        self._steps = -1
        self._stepped = False
        self._calls = 0
        self._awaits_turn = False
        self._beat_at = now
        self._progress_at = now

    def be(self, patience: Patience) -> None:
        """From now on it is so patient."""
        self._patience = patience

    def on_hello(self, now: float) -> None:
        self._phase = "load"
        self._beat_at = self._progress_at = now

    def on_loading(self, now: float) -> None:
        self._beat_at = self._progress_at = now

    def on_ready(self, now: float) -> None:
        self._phase = "serve"
        self._steps = -1
        self._beat_at = self._progress_at = now

    def on_heartbeat(self, now: float, beat: wire.Heartbeat) -> None:
        self._beat_at = now
        if beat.steps != self._steps:
            self._stepped = self._phase == "serve" and self._steps >= 0
            self._steps = beat.steps
            self._progress_at = now

    def on_call(self, now: float) -> None:
        """A call went to the engine. Counted here: a stuck engine cannot say what it has to do."""
        if self._calls == 0:
            self._progress_at = now
        self._calls += 1

    def on_call_over(self) -> None:
        self._calls -= 1

    def on_turn_wanted(self) -> None:
        """The engine waits for others: standing still is no fault until it gets its turn.

        That it gets one is the gateway's to see to, so what is hung meanwhile is found later.
        """
        self._awaits_turn = True

    def on_turn(self, now: float) -> None:
        """It has its turn, or wants it no more."""
        self._awaits_turn = False
        self._progress_at = now

    def deadline(self) -> float:
        """The moment at which silence until then becomes a verdict."""
        return min(at for at, _ in self._limits())

    def overdue(self, now: float) -> str | None:
        """What is wrong, in words for the log and the client, or None."""
        for at, reason in self._limits():
            if now >= at:
                return reason
        return None

    def _limits(self) -> list[tuple[float, str]]:
        if self._phase == "start":
            wait = HANDSHAKE_TIMEOUT_S
            return [(self._beat_at + wait, f"the engine did not start within {wait:g} s")]
        silent = (
            self._beat_at + HEARTBEAT_TIMEOUT_S,
            f"the engine process sent no heartbeat for {HEARTBEAT_TIMEOUT_S:g} s",
        )
        if self._phase == "load":
            wait = self._patience.load_timeout_s
            reason = f"the load made no progress for {wait:g} s"
        elif not self._calls or self._awaits_turn:
            return [silent]
        else:
            patience = self._patience
            # Kernels compile in the first step after a load.
            first = max(patience.first_step_timeout_s, patience.hang_timeout_s)
            wait = patience.hang_timeout_s if self._stepped else first
            reason = f"the model made no progress for {wait:g} s with requests running"
        return [silent, (self._progress_at + wait, reason)]
