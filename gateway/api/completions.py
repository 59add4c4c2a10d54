"""`POST /v1/completions`: text in, its continuation out, in the OpenAI dialect.

Several prompts are one call each; choice k of prompt p is choice p * `n` + k of the answer. The
text goes to the model as it is, without a chat template, and comes back as it is: neither calls nor
reasoning are looked for in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, assert_never

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.decode import BodyDecoder
from gateway.api.dialect import Decoded, Defaults, Make
from gateway.api.openai_encode import Chunks, finite, head, usage_object
from gateway.api.openai_fields import OpenAIFields, format_of, refuse_others, stops
from gateway.api.sampling_fields import sampling
from gateway.api.service_fields import wish
from gateway.api.sse import COMMENT
from gateway.errors import GatewayError, InvalidRequest, Unsupported
from gateway.residency import Phase
from gateway.supervisor.call import CallFailed, CallItem, ClientLeft, Granted

ID_PREFIX = "cmpl-"
MAX_PROMPTS = 16
MAX_TOKEN_ID = 2**31 - 1
MAX_LOGPROBS = 20

Prompt = str | list[int]

_NO_PARSERS = wire.Parsers(None, None)


class CompletionRequest(OpenAIFields, frozen=True, kw_only=True):
    """What is read of a request; unknown fields are ignored."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int | None = None
    # Known and not served: these values pass, anything else is refused by name.
    suffix: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCompletion(Decoded):
    """`echo`: the prompts that the answer begins with, in order; empty when it does not."""

    echo: tuple[str, ...] = ()

    @property
    def choices(self) -> int:
        return self.n * (1 + len(self.others))

    def echo_of(self, choice: int) -> str:
        return self.echo[choice // self.n] if self.echo else ""


_decoder = BodyDecoder(CompletionRequest)

_OTHERS: dict[str, tuple[Any, ...]] = {"suffix": ("",)}


def decode(body: bytes) -> DecodedCompletion:
    """The neutral requests, one for each prompt. Raises `InvalidRequest`, naming the field."""
    request = _decoder.decode(body)
    refuse_others(request, _OTHERS)
    n = request.n or 1
    if request.best_of not in (None, n):
        raise Unsupported("best_of: only the same number as n is served", param="best_of")
    prompts = _prompts(request.prompt)
    asked = wire.Generate(
        id=0,
        max_tokens=request.max_tokens,
        stop=stops(request),
        format=format_of(request),
        parsers=_NO_PARSERS,
        n=n,
        logprobs=request.logprobs,
    )
    first, *others = (_make(request, asked, prompt) for prompt in prompts)
    return DecodedCompletion(
        model=request.model,
        stream=bool(request.stream),
        include_usage=request.include_usage,
        make=first,
        others=tuple(others),
        n=n,
        timeout_s=request.timeout,
        wish=wish(request),
        echo=_echo(request, prompts) if request.echo else (),
    )


def _make(request: CompletionRequest, asked: wire.Generate, prompt: Prompt) -> Make:
    return partial(_generate, request, asked, prompt)


def _generate(
    request: CompletionRequest,
    asked: wire.Generate,
    prompt: Prompt,
    call_id: int,
    defaults: Defaults,
) -> wire.Generate:
    is_text = isinstance(prompt, str)
    return msgspec.structs.replace(
        asked,
        id=call_id,
        prompt=prompt if is_text else None,
        token_ids=None if is_text else prompt,
        sampling=sampling(request, defaults),
        max_tokens=asked.max_tokens or defaults.max_tokens,
    )


def _prompts(given: str | list[str | int | list[int]]) -> list[Prompt]:
    """One text, a list of texts, one list of token ids, or a list of such lists."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("prompt: the list is empty", param="prompt")
    kind = type(given[0])
    for i, item in enumerate(given):
        if type(item) is not kind:
            raise InvalidRequest(
                f"prompt[{i}]: texts, token ids and lists of token ids cannot be mixed",
                param=f"prompt[{i}]",
            )
    if kind is int:
        return [_token_ids(given, "prompt")]
    if len(given) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt: {len(given)} prompts in one request; at most {MAX_PROMPTS} are served",
            param="prompt",
        )
    return [
        item if isinstance(item, str) else _token_ids(item, f"prompt[{i}]")
        for i, item in enumerate(given)
    ]


def _token_ids(ids: Any, path: str) -> list[int]:
    if not ids:
        raise InvalidRequest(f"{path}: there are no token ids", param=path)
    for i, token_id in enumerate(ids):
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise InvalidRequest(f"{path}[{i}]: not a token id", param=f"{path}[{i}]")
    return list(ids)


def _echo(request: CompletionRequest, prompts: Sequence[Prompt]) -> tuple[str, ...]:
    if request.logprobs is not None:
        raise Unsupported(
            "echo: cannot be combined with logprobs, which are those of generated tokens only",
            param="echo",
        )
    texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
    if len(texts) < len(prompts):
        raise Unsupported("echo: needs the prompt as text, not as token ids", param="echo")
    return texts


@dataclass(slots=True)
class _Logprobs:
    """The log-probabilities of one choice, and how much text came before (in characters)."""

    offset: int = 0

    def take(self, tokens: Sequence[wire.TokenLogprob]) -> dict[str, Any]:
        """The next tokens in the shape of this API: one list for each property of a token."""
        offsets = []
        for token in tokens:
            offsets.append(self.offset)
            self.offset += len(token.token)
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {text: finite(logprob) for text, logprob in token.top} for token in tokens
            ],
            "text_offset": offsets,
        }


class TextChunkEncoder:
    """Events to frames: text, one finish reason for each choice, usage when asked, `[DONE]`."""

    def __init__(self, decoded: DecodedCompletion) -> None:
        self._decoded = decoded
        self._chunks = Chunks(decoded, ID_PREFIX, "text_completion")
        self._logprobs = [_Logprobs() for _ in range(decoded.choices)]
        self._texts: dict[int, bytes] = {}
        self._text_end = b',"logprobs":null,"finish_reason":null}]' + self._chunks.tail
        self._to_echo = set(range(decoded.choices)) if decoded.echo else set()

    def heartbeat(self) -> bytes:
        return COMMENT

    def frames(self, items: Sequence[CallItem]) -> list[bytes]:
        frames: list[bytes] = []
        for item in items:
            match item:
                case wire.TextDelta():
                    frames += self._echoed(item.choice)
                    frames.append(self._text(item))
                case wire.ChoiceFinished():
                    frames += self._echoed(item.choice)
                    frames.append(self._chunk(item.choice, "", None, item.reason))
                case wire.Finished():
                    frames += self._chunks.end(item.usage)
                case wire.ReasoningDelta() | wire.ToolCallStart() | wire.ToolCallArguments():
                    pass  # asked for without parsers, so there are none
                case Phase() | Granted() | ClientLeft() | CallFailed():
                    pass  # these have no frame in this dialect, or end the stream elsewhere
                case wire.Started() | wire.PromptProgress():
                    pass  # nothing of these is in a completion
                case wire.Bytes() | wire.Scores() | wire.Segment() | wire.Transcript():
                    pass  # no model that generates text sends these
                case _:
                    assert_never(item)
        return frames

    def error(self, error: GatewayError) -> bytes:
        return self._chunks.error(error)

    def _echoed(self, choice: int) -> list[bytes]:
        if choice not in self._to_echo:
            return []
        self._to_echo.remove(choice)
        return [self._chunk(choice, self._decoded.echo_of(choice), None, None)]

    def _text(self, delta: wire.TextDelta) -> bytes:
        choice = delta.choice
        if delta.logprobs is not None:
            logprobs = self._logprobs[choice].take(delta.logprobs)
            return self._chunk(choice, delta.text, logprobs, None)
        start = self._texts.get(choice)
        if start is None:
            start = self._texts[choice] = self._chunks.start + b'[{"index":%d,"text":' % choice
        return start + msgspec.json.encode(delta.text) + self._text_end

    def _chunk(
        self, choice: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
    ) -> bytes:
        return self._chunks.chunk(
            [{"index": choice, "text": text, "logprobs": logprobs, "finish_reason": reason}]
        )


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    logprobs: list[wire.TokenLogprob] = field(default_factory=list)
    reason: wire.FinishReason = "stop"


class TextEncoder:
    """Events to one text completion object."""

    def __init__(self, decoded: DecodedCompletion) -> None:
        self._decoded = decoded
        self._choices = [_Choice() for _ in range(decoded.choices)]
        self._usage: wire.Usage | None = None

    def add(self, items: Sequence[CallItem]) -> None:
        for item in items:
            match item:
                case wire.TextDelta():
                    choice = self._choices[item.choice]
                    choice.text.append(item.text)
                    choice.logprobs.extend(item.logprobs or ())
                case wire.ChoiceFinished():
                    self._choices[item.choice].reason = item.reason
                case wire.Finished():
                    self._usage = item.usage
                case wire.ReasoningDelta() | wire.ToolCallStart() | wire.ToolCallArguments():
                    pass  # asked for without parsers, so there are none
                case Phase() | Granted() | ClientLeft() | CallFailed():
                    pass  # what comes before a completion, or instead of one
                case wire.Started() | wire.PromptProgress():
                    pass  # nothing of these is in a completion
                case wire.Bytes() | wire.Scores() | wire.Segment() | wire.Transcript():
                    pass  # no model that generates text sends these
                case _:
                    assert_never(item)

    def body(self) -> bytes:
        assert self._usage is not None
        choices = [
            {
                "index": index,
                "text": self._decoded.echo_of(index) + "".join(choice.text),
                "logprobs": _Logprobs().take(choice.logprobs) if choice.logprobs else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        fields = head(self._decoded, ID_PREFIX, "text_completion")
        return msgspec.json.encode(
            {**fields, "choices": choices, "usage": usage_object(self._usage)}
        )
