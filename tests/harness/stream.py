"""An event stream of the OpenAI chat dialect, as a client reads it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx


class Frames:
    """What came: frames as JSON; `[DONE]` and comments noted."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.comments: list[str] = []
        self.done = False

    def take(self, line: str) -> bool:
        """Whether this line was a data frame."""
        if line.startswith(":"):
            self.comments.append(line)
        elif line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            assert not self.done, "a frame after [DONE]"
            self.frames.append(json.loads(line.removeprefix("data: ")))
            return True
        return False

    @property
    def text(self) -> str:
        deltas = (frame["choices"][0]["delta"] for frame in self.frames if frame.get("choices"))
        return "".join(delta.get("content") or "" for delta in deltas)

    @property
    def error(self) -> dict[str, Any] | None:
        return next((frame["error"] for frame in self.frames if "error" in frame), None)

    @property
    def finish_reasons(self) -> list[str]:
        choices = (choice for frame in self.frames for choice in frame.get("choices", ()))
        return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]

    def assert_complete(self, text: str, reason: str = "stop") -> None:
        assert self.error is None
        assert (self.text, self.finish_reasons, self.done) == (text, [reason], True)

    def assert_failed(self, code: str) -> str:
        """It ended with this error and did not look complete; returns the error's message."""
        assert self.error is not None, f"no error in {self.frames[-3:]}"
        assert self.error["code"] == code, self.error
        assert self.frames[-1].get("error") == self.error, "frames after the error"
        assert (self.finish_reasons, self.done) == ([], False)
        message: str = self.error["message"]
        return message


class Stream(Frames):
    """One that is still being read."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.response = response
        self.status = response.status_code
        self._lines: AsyncIterator[str] = response.aiter_lines()

    async def next(self) -> dict[str, Any] | None:
        """The next data frame, or None at the end of the stream."""
        async for line in self._lines:
            if self.take(line):
                return self.frames[-1]
        return None

    async def until_text(self) -> None:
        """Reads until the first text has come."""
        while not self.text:
            assert await self.next() is not None, f"ended without text: {self.frames}"

    async def rest(self) -> Stream:
        """Reads to the end."""
        while await self.next() is not None:
            pass
        return self
