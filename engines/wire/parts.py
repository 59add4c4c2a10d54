"""What is nested inside messages."""

from __future__ import annotations

from typing import Any, Literal

from engines.wire.base import Part

EngineKind = Literal[
    "scripted", "text", "vision", "embedding", "rerank", "transcription", "speech", "tokenizer"
]


class Limits(Part, frozen=True):
    """Byte limits that are part of the model's reservation; the engine keeps within them."""

    charge_bytes: int
    weights_bytes: int
    kv_bytes: int
    prompt_cache_bytes: int
    mlx_cache_bytes: int


class DiskCache(Part, frozen=True):
    """Where prompt caches outlast the process: a folder of this model alone, and its bounds."""

    folder: str
    fingerprint: str
    max_bytes: int
    max_age_s: float


class EngineSpec(Part, frozen=True):
    """What a change of which needs a new process.

    A prompt is taken in by `prefill_step_size` tokens at a time; None is as many as a step of
    `step_target_s` seconds holds.
    """

    name: str
    engine: EngineKind
    path: str = ""
    context_length: int | None = None
    trust_remote_code: bool = False
    prefill_step_size: int | None = None
    step_target_s: float = 0.15
    scripted: dict[str, Any] = {}
    disk_cache: DiskCache | None = None


class Sampling(Part, frozen=True):
    """How the next token is drawn.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off. The temperature is
    applied before the cuts, as in the OpenAI and Hugging Face samplers. Presence and frequency
    penalties count generated tokens only, as OpenAI defines them; the repetition penalty counts
    the prompt too. `logit_bias` is by token id.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}


class ToolChoice(Part, frozen=True):
    """`named` calls the tool `name`; without `parallel` there is at most one call."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True


class Format(Part, frozen=True):
    """What the visible answer has to look like; `grammar` is a JSON schema, a regex or Lark."""

    kind: Literal["text", "json_object", "json_schema", "regex", "lark"] = "text"
    grammar: Any = None


class Reasoning(Part, frozen=True):
    """Whether the model thinks first (None: as its template does), and how long."""

    enabled: bool | None = None
    budget_tokens: int | None = None
    effort: str | None = None


class Media(Part, frozen=True):
    """A file of the gateway's, which removes it when the call ends; `type` is its media type."""

    kind: Literal["image", "video", "audio"]
    path: str
    type: str
    size: int
    sha256: str


class VideoFrames(Part, frozen=True):
    """How many frames of a video a model looks at; None leaves it to the model."""

    fps: float | None = None
    most: int | None = None


class Parsers(Part, frozen=True):
    """Formats by name; `auto` goes by the chat template, None is off."""

    tool: str | None = "auto"
    reasoning: str | None = "auto"


class TokenLogprob(Part, frozen=True):
    """One generated token with its log-probability after penalties and masks."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Memory(Part, frozen=True):
    """Bytes in use by class; `process_bytes` is the whole process as the system counts it."""

    weights_bytes: int = 0
    kv_bytes: int = 0
    prompt_cache_bytes: int = 0
    mlx_cache_bytes: int = 0
    process_bytes: int = 0


class PromptCacheStats(Part, frozen=True):
    """Counters since load; the last four are of the tier on disk."""

    entries: int = 0
    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    evictions: int = 0
    disk_entries: int = 0
    disk_bytes: int = 0
    disk_hits: int = 0
    disk_bad_files: int = 0


class FeatureCacheStats(Part, frozen=True):
    """Of what a vision model has made of images; counters since load."""

    entries: int = 0
    nbytes: int = 0
    hits: int = 0
    misses: int = 0


class Usage(Part, frozen=True):
    """`completion_tokens` are those of all choices and include `reasoning_tokens`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(Part, frozen=True):
    """Seconds, by the engine's monotonic clock."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
