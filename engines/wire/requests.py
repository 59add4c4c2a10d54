"""From the gateway to an engine."""

from __future__ import annotations

from typing import Any, Literal

from engines.wire.base import Message
from engines.wire.parts import (
    EngineSpec,
    Format,
    Limits,
    Media,
    Parsers,
    Reasoning,
    Sampling,
    ToolChoice,
    VideoFrames,
)


class Load(Message, frozen=True):
    spec: EngineSpec
    limits: Limits


class SetLimits(Message, frozen=True):
    limits: Limits


class Generate(Message, frozen=True):
    """One neutral request for text, whatever dialect it came in.

    Exactly one of `messages`, `prompt` and `token_ids` is the prompt. `messages` are chat messages
    as templates take them: role, content, and for tools `tool_calls` (arguments as objects),
    `tool_call_id`, `name`, `reasoning_content`. A content is a string, or with media a list of
    `{"type": "text", "text": ...}` and `{"type": "image" | "video" | "audio", "media": index}`,
    where the index is into `media`. `max_tokens` None means up to the context length and counts
    each of the `n` choices, which share one prefill. `logprobs` is how many alternatives to report
    beside each token, None for no log-probabilities at all.
    """

    id: int
    messages: list[dict[str, Any]] = []
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    template_kwargs: dict[str, Any] = {}
    prompt: str | None = None
    token_ids: list[int] | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: ToolChoice = ToolChoice()
    format: Format = Format()
    reasoning: Reasoning = Reasoning()
    parsers: Parsers = Parsers()
    n: int = 1
    logprobs: int | None = None
    media: tuple[Media, ...] = ()
    video: VideoFrames = VideoFrames()


class Embed(Message, frozen=True):
    """Vectors of texts or token lists; `Bytes` hold them in order as little-endian float32.

    `truncate` cuts an input that is too long; without it that is an error. `prompt` names one of
    the model's own prompts, or a side of a search, `query` or `document`, which every model has, if
    without a prompt of its own. The number of values of each is all bytes over 4 over the inputs.
    """

    id: int
    inputs: list[str | list[int]]
    dimensions: int | None = None
    truncate: bool = False
    prompt: str | None = None


class Rerank(Message, frozen=True):
    """How relevant each document is to the query; answered by one `Scores`."""

    id: int
    query: str
    documents: list[str]
    truncate: bool = True


class Transcribe(Message, frozen=True):
    """Speech to text: a `Segment` for each that is complete, then one `Transcript`.

    `translate` gives English. `words` asks for the times of words.
    """

    id: int
    audio: Media
    language: str | None = None
    translate: bool = False
    prompt: str | None = None
    temperature: float = 0.0
    words: bool = False


class Speak(Message, frozen=True):
    """Text to speech: `Bytes` of one file in `format`, as it is made.

    A call begins with a credit of `SPEECH_CREDIT_BYTES`, each `Credit` adds to it, and no more
    `Bytes` are sent than there is credit for: a slow listener pauses this call, and no other.
    `voice` is one of `Ready.voices`; None and "default" are the model's own choice. `speed` 1 is
    the model's own. `language` is a code such as `en` or `fr`; None goes by the voice. `pcm` is
    16-bit little-endian mono at 24 kHz; the other formats have the model's own rate.
    """

    id: int
    text: str
    voice: str | None = None
    speed: float = 1.0
    language: str | None = None
    format: Literal["wav", "mp3", "flac", "opus", "aac", "pcm"] = "wav"
    instructions: str | None = None


class Credit(Message, frozen=True):
    """The client of a `Speak` has taken so many bytes: as many more may come."""

    id: int
    nbytes: int


class ClearCache(Message, frozen=True):
    """Drops what the engine keeps of earlier prompts and media, on disk too; `Cleared` answers.

    `path` has no meaning to an engine, which has one model. With `prefix` only entries go that
    begin with these tokens' text or share its beginning.
    """

    id: int
    path: str
    prefix: str | None = None


class Warm(Message, frozen=True):
    """Takes a prompt into the cache, once no call wants the model, for requests to begin with.

    `Counted` answers at once with the tokens that are to be taken in. `messages` are the beginning
    of a conversation; what no user's turn after them would change is what is taken in. `path` has
    no meaning to an engine.
    """

    id: int
    path: str
    messages: list[dict[str, Any]]
    template_kwargs: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []


class Turn(Message, frozen=True):
    """The engine may begin the long prefill that it asked for with `WantTurn`."""


class CountTokens(Message, frozen=True):
    """How many prompt tokens a `Generate` with these fields would have; answered by `Counted`.

    With `listed` the tokens themselves are wanted, and `Tokenized` answers. Media can be counted
    by the model's own engine alone.
    `path` is the model's folder, for a worker that counts for many models; it is empty for a
    scripted one. `trust_remote_code` is for that worker too.
    """

    id: int
    path: str
    messages: list[dict[str, Any]]
    template_kwargs: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    tool_choice: ToolChoice = ToolChoice()
    reasoning: Reasoning = Reasoning()
    trust_remote_code: bool = False
    listed: bool = False
    media: tuple[Media, ...] = ()
    video: VideoFrames = VideoFrames()


class Tokenize(Message, frozen=True):
    """Answered by `Tokenized`."""

    id: int
    path: str
    text: str
    add_special_tokens: bool = True
    trust_remote_code: bool = False


class Detokenize(Message, frozen=True):
    """Answered by `Detokenized`."""

    id: int
    path: str
    token_ids: list[int]
    trust_remote_code: bool = False


class Cancel(Message, frozen=True):
    id: int
    reason: str


class Shutdown(Message, frozen=True):
    """Take no more work, give everything back, exit 0; exit anyway after `grace_s`."""

    grace_s: float
