"""What the encoders of chat completions and of text completions have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from engines import wire
from gateway.api.dialect import Decoded
from gateway.api.errors import openai_error
from gateway.errors import GatewayError

DONE = b"data: [DONE]\n\n"

LEAST_LOGPROB = -9999.0
"""In place of minus infinity, which JSON has not; OpenAI's API does the same."""


def head(decoded: Decoded, id_prefix: str, kind: str) -> dict[str, Any]:
    """The fields that every chunk of a stream shares, and a whole answer has once."""
    return {
        "id": f"{id_prefix}{decoded.serial}",
        "object": kind,
        "created": int(time.time()),
        "model": decoded.model,
        "system_fingerprint": decoded.fingerprint,
    }


def usage_object(usage: wire.Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class Chunks:
    """The frames of one stream. `start` and `tail` lie around the `choices` of each."""

    def __init__(self, decoded: Decoded, id_prefix: str, kind: str) -> None:
        self._include_usage = decoded.include_usage
        fields = msgspec.json.encode(head(decoded, id_prefix, kind))
        self.start = b"data: " + fields[:-1] + b',"choices":'
        # The reference: when usage is asked for, every chunk but the last carries a null.
        self.tail = b',"usage":null}\n\n' if decoded.include_usage else b"}\n\n"

    def chunk(self, choices: Sequence[dict[str, Any]]) -> bytes:
        return self.start + msgspec.json.encode(choices) + self.tail

    def end(self, usage: wire.Usage) -> list[bytes]:
        """The usage, when asked for, in a chunk without choices; then the end of the stream."""
        if not self._include_usage:
            return [DONE]
        return [
            self.start + b'[],"usage":' + msgspec.json.encode(usage_object(usage)) + b"}\n\n",
            DONE,
        ]

    def error(self, error: GatewayError) -> bytes:
        """After it the stream ends without `[DONE]`, so a failure never looks complete."""
        return b"data: " + msgspec.json.encode({"error": openai_error(error)}) + b"\n\n"
