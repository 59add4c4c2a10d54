"""From an engine to the gateway."""

from __future__ import annotations

from typing import Literal

from engines.wire.base import Message, Part
from engines.wire.parts import (
    FeatureCacheStats,
    Memory,
    PromptCacheStats,
    Timings,
    TokenLogprob,
    Usage,
)

FailureCode = Literal[
    "cancelled",
    "context_length_exceeded",
    "engine_error",
    "invalid_request",
    "overloaded",
    "tool_choice_unsupported",
    "unsupported",
]


Modality = Literal["text", "image", "video", "audio"]


class Hello(Message, frozen=True):
    version: int
    token: str


class Loading(Message, frozen=True):
    """Load progress: a stage name a person understands, and bytes where they can be counted."""

    stage: str
    done_bytes: int = 0
    total_bytes: int = 0


class Ready(Message, frozen=True):
    context_length: int
    memory: Memory
    applied: dict[str, int] = {}
    """Limits as they were set on the library, by name, in bytes."""
    modalities: tuple[Modality, ...] = ("text",)
    """What its requests may hold."""
    voices: tuple[str, ...] = ()
    dimensions: int | None = None
    """Of the vectors of an embedding model."""


class LoadFailed(Message, frozen=True):
    message: str


class Heartbeat(Message, frozen=True):
    """Sent every second by the I/O thread, whatever the work thread does.

    `steps` grows by one at every unit of work done (a step, a prefill chunk, a load stage);
    work present and `steps` unchanged means stuck.
    """

    steps: int
    step: str
    memory: Memory
    running: int
    waiting: int
    prompt_cache: PromptCacheStats
    features: FeatureCacheStats = FeatureCacheStats()


class WantTurn(Message, frozen=True):
    """A long prefill of `tokens` waits for a `Turn`, so that engines do not starve each other."""

    tokens: int


class TurnOver(Message, frozen=True):
    """The prefill that had the turn is done, or is no longer wanted, also while it waits."""


class Started(Message, frozen=True):
    """The prompt is in the model; `cached_tokens` of it came from the prompt cache."""

    id: int
    prompt_tokens: int
    cached_tokens: int = 0


class PromptProgress(Message, frozen=True):
    id: int
    done_tokens: int
    total_tokens: int


class ReasoningDelta(Message, frozen=True):
    """Text that the model thinks and does not say."""

    id: int
    choice: int
    text: str


class TextDelta(Message, frozen=True):
    """Visible text; `logprobs` are of the tokens it was made of, when asked for."""

    id: int
    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


class ToolCallStart(Message, frozen=True):
    """`index` counts the calls of this choice from 0."""

    id: int
    choice: int
    index: int
    call_id: str
    name: str


class ToolCallArguments(Message, frozen=True):
    """The pieces of one call make one JSON object."""

    id: int
    choice: int
    index: int
    text: str


FinishReason = Literal["stop", "length", "tool_calls"]


class ChoiceFinished(Message, frozen=True):
    id: int
    choice: int
    reason: FinishReason
    stop_sequence: str | None = None


class Bytes(Message, frozen=True):
    """A piece of vectors or audio, of at most `MAX_PART_BYTES`; `seq` counts from 0."""

    id: int
    seq: int
    data: bytes


class Scores(Message, frozen=True):
    """From 0 to 1, in the order of the documents."""

    id: int
    scores: list[float]


class Word(Part, frozen=True):
    """Times in seconds from the beginning of the audio."""

    text: str
    start_s: float
    end_s: float
    probability: float | None = None


class Segment(Message, frozen=True):
    """A stretch of speech; what the model does not tell is None. Segments come in order."""

    id: int
    index: int
    start_s: float
    end_s: float
    text: str
    words: tuple[Word, ...] = ()
    tokens: tuple[int, ...] = ()
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


class Transcript(Message, frozen=True):
    """The whole text; `language` is a code such as `en`."""

    id: int
    text: str
    language: str | None
    duration_s: float


class Cleared(Message, frozen=True):
    id: int
    entries: int
    nbytes: int


class Counted(Message, frozen=True):
    id: int
    tokens: int


class Tokenized(Message, frozen=True):
    id: int
    token_ids: list[int]
    context_length: int


class Detokenized(Message, frozen=True):
    id: int
    text: str


class Finished(Message, frozen=True):
    id: int
    usage: Usage
    timings: Timings


class Failed(Message, frozen=True):
    """The call is over. `code` is one of `FailureCode`; `retryable` says a retry may work."""

    id: int
    code: FailureCode
    message: str
    retryable: bool = False
