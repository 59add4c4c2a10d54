"""One streamed chat completion, timed at the client. Times are seconds of the monotonic clock.

The token count of an answer is the server's own (`usage`); the gaps are between events, of which a
server may send one for several tokens.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpcore
import msgspec

CHAT = "/v1/chat/completions"
MAX_BODY = 64 * 2**20
_DECODE = msgspec.json.Decoder().decode


class Unreachable(Exception):
    """No server answers at the address."""


@dataclass(slots=True)
class Sample:
    """What came of one request. `ttft_s` is from sending to the first text, reasoning or call."""

    duration_s: float = 0.0
    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    fingerprint: str | None = None
    status: int = 0
    error: str | None = None
    """A code, or a kind of transport error; None for a complete answer."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def decode_s(self) -> float:
        return self.duration_s - (self.ttft_s or 0.0)

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        if self.ttft_s is None or self.completion_tokens < 2:
            return None
        return self.decode_s / (self.completion_tokens - 1)


class Client:
    """Connections to one server, for use in `async with`. `timeout_s` 0 is none.

    Raises `ValueError` for what is no address.
    """

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 300.0) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"{url!r} is no address of a server; it begins with http://")
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._timeout = {"connect": 10.0, "read": timeout_s or None, "write": 60.0, "pool": None}
        bearer = (("authorization", f"Bearer {key}"),) if key else ()
        self._headers: tuple[tuple[bytes | str, bytes | str], ...] = bearer
        self._pool = httpcore.AsyncConnectionPool(max_connections=None)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises `Unreachable`."""
        return await self._whole("GET", path)

    async def delete(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises `Unreachable`."""
        return await self._whole("DELETE", path)

    async def chat(self, body: Mapping[str, Any]) -> Sample:
        """Raises `Unreachable`; every other failure is in the sample."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        began = time.monotonic()
        sample = Sample()
        try:
            async with self._pool.stream(
                "POST",
                self._base + CHAT,
                headers=[*self._headers, ("content-type", "application/json")],
                content=msgspec.json.encode(asked),
                extensions={"timeout": self._timeout},
            ) as response:
                sample.status = response.status
                if response.status == 200:
                    await _follow(response.aiter_stream(), sample, began)
                else:
                    sample.error = _code(await response.aread())
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise Unreachable(f"nothing answers at {self._base}: {error}") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            sample.error = type(error).__name__
        except msgspec.DecodeError:
            sample.error = "malformed"
        sample.duration_s = time.monotonic() - began
        return sample

    async def sample(self, body: Mapping[str, Any]) -> Sample:
        """As `chat`, and a server that has gone is a failure like any other."""
        try:
            return await self.chat(body)
        except Unreachable:
            return Sample(error="unreachable")

    async def _whole(self, method: str, path: str) -> tuple[int, bytes]:
        timeout = {**self._timeout, "read": 60.0}
        try:
            response = await self._pool.request(
                method, self._base + path, headers=self._headers, extensions={"timeout": timeout}
            )
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise Unreachable(f"nothing answers at {self._base}: {error}") from error
        return response.status, response.content[:MAX_BODY]


async def _follow(chunks: AsyncIterator[bytes], sample: Sample, began: float) -> None:
    last: float | None = None
    done = False
    async for data in _events(chunks):
        if data == b"[DONE]":
            done = True
            continue
        now = time.monotonic()
        if _take(_DECODE(data), sample):
            if last is None:
                sample.ttft_s = now - began
            else:
                sample.gaps_s.append(now - last)
            last = now
    if sample.error is None and (not done or sample.finish_reason is None):
        sample.error = "incomplete"


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event; comments and other fields are left out."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _take(event: Any, sample: Sample) -> bool:
    """Adds an event to the sample; whether it holds a piece of the answer."""
    if not isinstance(event, dict):
        return False
    if isinstance(failure := event.get("error"), dict):
        sample.error = str(failure.get("code") or failure.get("type") or "error")
        return False
    sample.fingerprint = event.get("system_fingerprint") or sample.fingerprint
    if usage := event.get("usage"):
        sample.prompt_tokens = usage.get("prompt_tokens") or 0
        sample.completion_tokens = usage.get("completion_tokens") or 0
        details = usage.get("prompt_tokens_details") or {}
        sample.cached_tokens = details.get("cached_tokens") or 0
    said = False
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text, thought = delta.get("content") or "", delta.get("reasoning_content") or ""
        sample.text += text
        sample.reasoning += thought
        sample.finish_reason = choice.get("finish_reason") or sample.finish_reason
        said = said or bool(text or thought or delta.get("tool_calls"))
    return said


def _code(body: bytes) -> str:
    try:
        failure = _DECODE(body)["error"]
        return str(failure.get("code") or failure.get("type"))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return "error"
