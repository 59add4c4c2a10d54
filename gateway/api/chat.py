"""`POST /v1/chat/completions`, from a body to the neutral request.

Field rules are those of the OpenAI API reference, with the extensions that open-weight servers
share. Null means not given. What would change the answer and cannot be honoured is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.chat_messages import (
    ChatMessage,
    Choice,
    Tool,
    choice_of,
    conversation,
    tools_of,
)
from gateway.api.decode import BodyDecoder, check_plain
from gateway.api.dialect import Decoded, Defaults
from gateway.api.media import Attachments, VideoLength, VideoRate
from gateway.api.openai_fields import OpenAIFields, format_of, refuse_others, stops
from gateway.api.sampling_fields import merged, sampling
from gateway.api.service_fields import wish
from gateway.api.tools import MAX_TOOLS, chosen
from gateway.errors import InvalidRequest

MAX_MESSAGES = 65_536
MAX_TOP_LOGPROBS = 20

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(OpenAIFields, frozen=True, kw_only=True):
    """What is read of a request; unknown fields are ignored."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    video_fps: VideoRate | None = None
    video_max_frames: VideoLength | None = None
    # Known and not served: these values pass, anything else is refused by name.
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    verbosity: Any = None


_decoder = BodyDecoder(ChatRequest)

_OTHERS: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": ([], ["text"]),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
}


def decode(body: bytes) -> Decoded:
    """The neutral request. Raises `InvalidRequest`, naming the field."""
    request = _decoder.decode(body)
    refuse_others(request, _OTHERS)
    check_plain(request.chat_template_kwargs, "chat_template_kwargs")
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs to be true", param="top_logprobs")
    choice = choice_of(request.tool_choice, request.parallel_tool_calls)
    tools = chosen(tools_of(request.tools), choice)
    attachments = Attachments()
    asked = wire.Generate(
        id=0,
        messages=conversation(request.messages, attachments),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        stop=stops(request),
        tools=tools,
        tool_choice=choice,
        format=format_of(request),
        n=request.n or 1,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        video=wire.VideoFrames(request.video_fps, request.video_max_frames),
    )
    return Decoded(
        model=request.model,
        stream=bool(request.stream),
        include_usage=request.include_usage,
        make=lambda call_id, defaults: _generate(request, asked, call_id, defaults),
        n=asked.n,
        media=attachments.refs,
        timeout_s=request.timeout,
        wish=wish(request),
    )


def _generate(
    request: ChatRequest, asked: wire.Generate, call_id: int, defaults: Defaults
) -> wire.Generate:
    """What was asked, with the model's defaults for what the client left open."""
    kwargs = merged(defaults, request.chat_template_kwargs)
    return msgspec.structs.replace(
        asked,
        id=call_id,
        sampling=sampling(request, defaults),
        max_tokens=asked.max_tokens or defaults.max_tokens,
        template_kwargs=kwargs,
        reasoning=_reasoning(request, kwargs),
        parsers=defaults.parsers,
    )


def _reasoning(request: ChatRequest, kwargs: dict[str, Any]) -> wire.Reasoning:
    """A switch by name goes before an effort, and that before the template's own argument."""
    effort, in_template = request.reasoning_effort, kwargs.get("enable_thinking")
    enabled = request.enable_thinking
    if enabled is None and effort is not None:
        enabled = False if effort == "none" else None
    if enabled is None and isinstance(in_template, bool):
        enabled = in_template
    return wire.Reasoning(
        enabled=enabled,
        budget_tokens=request.thinking_token_budget,
        effort=None if effort == "none" else effort,
    )
