"""How long one request may take, whatever it waits for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import RequestTimeout
from gateway.registry.schema import Server


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of a request is over `at` (loop time), `timeout_s` after it began; None: never."""

    at: float = float("inf")
    timeout_s: float | None = None

    def check(self, now: float) -> None:
        """Raises `RequestTimeout` once the time is over."""
        if now >= self.at:
            raise RequestTimeout(
                f"the request took longer than its timeout of {self.timeout_s:g} s"
            )


def deadline_of(began: float, asked_s: float | None, server: Server) -> Deadline:
    """Of a request that began then. The client's own timeout goes before the operator's."""
    timeout_s = asked_s or server.request_timeout_s
    return Deadline(began + timeout_s, timeout_s) if timeout_s else Deadline()
