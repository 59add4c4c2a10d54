"""Small questions to one engine that are under way, and what an engine's failures are to clients.

The owner of the engine passes on what the engine says; whoever asked awaits the future.
"""

from __future__ import annotations

import asyncio

from engines import wire
from gateway import errors
from gateway.errors import GatewayError, QueueFull

MOST_QUESTIONS = 64

_FAILURES: dict[wire.FailureCode, type[GatewayError]] = {
    "context_length_exceeded": errors.ContextLengthExceeded,
    "engine_error": errors.EngineFailed,
    "invalid_request": errors.InvalidRequest,
    "overloaded": errors.NoCapacity,
    "tool_choice_unsupported": errors.ToolChoiceUnsupported,
    "unsupported": errors.Unsupported,
}


def error_of(failed: wire.Failed) -> GatewayError:
    """An engine's failure of one call, for the client.

    The gateway ends a call before it asks the engine to cancel it, so a cancel that somebody hears
    of is none of its own: the engine was told to stop from outside, as by a SIGTERM.
    """
    if failed.code == "cancelled":
        message = f"the engine was stopped from outside the gateway: {failed.message}"
        return errors.EngineCrashed(message, retry_after_s=1)
    return _FAILURES[failed.code](failed.message, retry_after_s=1 if failed.retryable else None)


class Questions:
    """Futures by question id; each leaves when it is done, whether answered or given up.

    There are at most `MOST_QUESTIONS`, since each can be as large as a request.
    """

    def __init__(self) -> None:
        self._asked: dict[int, asyncio.Future[wire.Answer]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, question: wire.Ask) -> asyncio.Future[wire.Answer]:
        """Raises `QueueFull`."""
        if len(self._asked) >= MOST_QUESTIONS:
            raise QueueFull(
                f"{MOST_QUESTIONS} requests already wait to be counted", retry_after_s=1
            )
        answer: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        self._asked[question.id] = answer
        answer.add_done_callback(lambda _: self._asked.pop(question.id, None))
        return answer

    def on_answer(self, answer: wire.Answer) -> None:
        asked = self._asked.get(answer.id)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def on_failed(self, failed: wire.Failed) -> None:
        """For an id that is no question's it does nothing."""
        asked = self._asked.get(failed.id)
        if asked is not None and not asked.done():
            asked.set_exception(error_of(failed))

    def fail_all(self, error: GatewayError) -> None:
        for asked in list(self._asked.values()):
            if not asked.done():
                asked.set_exception(error)
