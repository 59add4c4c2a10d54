"""The wire between gateway and engine: a closed vocabulary and its framing. No I/O, no clock.

One engine process serves one model over one stream socket. Both directions carry frames:
a little-endian u32 length, then that many bytes of msgpack: one tagged struct of this module.
Calls are multiplexed by `id`, chosen by the gateway and unique per connection.

Order per call: at most one `Started`, before any delta; deltas in the order of generation; one
`ChoiceFinished` per choice; then exactly one `Finished` or `Failed`, after which the id is dead.
`Cancel` is answered by the `Failed(code="cancelled")` of its call, or crosses its `Finished`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

WIRE_VERSION = 1

MAX_REQUEST_BYTES = 8 * 2**20
"""A larger `Generate` is refused by the gateway with a 413 before it is sent."""

MAX_EVENT_BYTES = 2 * 2**20
"""A larger frame from an engine is a protocol error that ends that engine."""

FD_VARIABLE = "MLX_GATEWAY_ENGINE_FD"
TOKEN_VARIABLE = "MLX_GATEWAY_ENGINE_TOKEN"
"""How a worker learns its end of the socket pair and the token that its `Hello` must repeat."""

IMPORT_VARIABLE = "MLX_GATEWAY_ENGINE_IMPORT"
"""An `EngineSpec.engine`: its libraries are imported before any `Load`; one `Loading` tells."""

_HEADER = struct.Struct("<I")


class WireError(Exception):
    """The peer broke the protocol; the connection cannot be used any further."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of everything that travels in a frame."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what is nested inside a message."""


# --- nested parts ---------------------------------------------------------------------------


class Limits(Part, frozen=True):
    """Byte limits that are part of the model's reservation; the engine keeps within them."""

    charge_bytes: int
    weights_bytes: int
    kv_bytes: int
    prompt_cache_bytes: int
    mlx_cache_bytes: int


class EngineSpec(Part, frozen=True):
    """What a change of which needs a new process."""

    name: str
    engine: Literal["scripted", "text", "tokenizer"]
    path: str = ""
    context_length: int | None = None
    trust_remote_code: bool = False
    prefill_step_size: int = 512
    scripted: dict[str, Any] = {}


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
    entries: int = 0
    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0


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


# --- gateway to engine ------------------------------------------------------------------------


class Load(Message, frozen=True):
    spec: EngineSpec
    limits: Limits


class SetLimits(Message, frozen=True):
    limits: Limits


class Generate(Message, frozen=True):
    """One neutral request for text, whatever dialect it came in.

    Exactly one of `messages`, `prompt` and `token_ids` is the prompt. `messages` are chat messages
    as templates take them: role, content, and for tools `tool_calls` (arguments as objects),
    `tool_call_id`, `name`, `reasoning_content`. `max_tokens` None means up to the context length
    and counts each of the `n` choices, which share one prefill. `logprobs` is how many
    alternatives to report beside each token, None for no log-probabilities at all.
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


class CountTokens(Message, frozen=True):
    """How many prompt tokens a `Generate` with these fields would have; answered by `Counted`.

    With `listed` the tokens themselves are wanted, and `Tokenized` answers.
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


# --- engine to gateway ------------------------------------------------------------------------


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


FailureCode = Literal[
    "cancelled",
    "context_length_exceeded",
    "engine_error",
    "invalid_request",
    "overloaded",
    "tool_choice_unsupported",
    "unsupported",
]

Ask = CountTokens | Tokenize | Detokenize
"""Small questions that need no lease; each is answered by one `Answer` or `Failed`."""

ToEngine = Load | SetLimits | Generate | Ask | Cancel | Shutdown
Delta = ReasoningDelta | TextDelta | ToolCallStart | ToolCallArguments
CallEvent = Started | PromptProgress | Delta | ChoiceFinished | Finished | Failed
Answer = Counted | Tokenized | Detokenized
FromEngine = Hello | Loading | Ready | LoadFailed | Heartbeat | CallEvent | Answer

_encoder = msgspec.msgpack.Encoder()


def encode(message: ToEngine | FromEngine) -> bytes:
    """One frame, header included."""
    buffer = bytearray(_HEADER.size)
    _encoder.encode_into(message, buffer, _HEADER.size)
    _HEADER.pack_into(buffer, 0, len(buffer) - _HEADER.size)
    return bytes(buffer)


def encode_all(messages: Iterable[ToEngine | FromEngine]) -> bytes:
    """Several frames in one buffer, so that what is ready together is written together."""
    return b"".join(map(encode, messages))


_Incoming = TypeVar("_Incoming", ToEngine, FromEngine)


class Decoder(Generic[_Incoming]):
    """Frames from a stream of bytes, however they are cut.

    `max_frame` bounds one frame in bytes; a longer one, or one that does not decode, raises
    `WireError`, and the decoder must not be fed again.
    """

    def __init__(self, kind: Any, max_frame: int) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._max_frame = max_frame
        self._pending = b""

    def feed(self, data: bytes) -> list[_Incoming]:
        """Every message that `data` completes, in order."""
        if self._pending:
            data = self._pending + data
        messages: list[_Incoming] = []
        offset, end = 0, len(data)
        view = memoryview(data)
        while end - offset >= _HEADER.size:
            (length,) = _HEADER.unpack_from(data, offset)
            if length > self._max_frame:
                raise WireError(f"a frame of {length} bytes is over the limit of {self._max_frame}")
            start = offset + _HEADER.size
            if end - start < length:
                break
            offset = start + length
            messages.append(self._message(view[start:offset]))
        self._pending = data[offset:]
        return messages

    def _message(self, frame: memoryview) -> _Incoming:
        try:
            return cast(_Incoming, self._decode(frame))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"a frame that is no message: {error}") from error


def requests_decoder() -> Decoder[ToEngine]:
    """What an engine reads with."""
    return Decoder(ToEngine, MAX_REQUEST_BYTES + 2**16)


def events_decoder() -> Decoder[FromEngine]:
    """What the gateway reads with."""
    return Decoder(FromEngine, MAX_EVENT_BYTES)
