"""`POST /v1/messages`: the Anthropic dialect's half before the exchange, a body to a call.

Field rules are those of Anthropic's API reference. Where that API is stricter than a local model
needs, such as a thinking budget of at least 1,024 tokens below `max_tokens`, we are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.decode import BodyDecoder, check_plain
from gateway.api.dialect import Defaults
from gateway.api.media import Attachments, MediaRef
from gateway.api.messages_encode import MessagesDecoded
from gateway.api.messages_prompt import (
    Name,
    System,
    Tools,
    Turns,
    neutral_messages,
    neutral_tools,
    prefills,
)
from gateway.api.sampling_fields import SamplingFields, sampling
from gateway.api.service_fields import wish
from gateway.api.tools import chosen
from gateway.errors import InvalidRequest, Unsupported

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024

Tokens = Annotated[int, Meta(ge=1, le=10**9)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class ThinkingConfig(msgspec.Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Tokens | None = None
    display: Literal["summarized", "omitted"] | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class PromptRequest(SamplingFields, frozen=True, kw_only=True):
    """What says what the prompt is; null means not given, unknown fields are ignored."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Turns
    system: System | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(PromptRequest, frozen=True, kw_only=True):
    """A request for an answer. `output_format` is the earlier name of `output_config.format`."""

    max_tokens: Tokens
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    output_format: OutputFormat | None = None
    # Known and not served: empty passes, anything else is refused by name.
    mcp_servers: list[Any] | None = None
    container: Any = None


_decoder = BodyDecoder(MessagesRequest)


def decode(body: bytes) -> MessagesDecoded:
    """The neutral request. Raises `InvalidRequest`, naming the field."""
    request = _decoder.decode(body)
    for field in ("mcp_servers", "container"):
        if getattr(request, field):
            raise Unsupported(f"{field}: it is not served; leave it out", param=field)
    prompt = prompt_of(request)
    answer = _format(request)
    thinking = request.thinking
    return MessagesDecoded(
        model=request.model,
        stream=bool(request.stream),
        include_usage=True,
        make=lambda call_id, defaults: _generate(request, prompt, answer, call_id, defaults),
        media=prompt.media,
        timeout_s=request.timeout,
        wish=wish(request),
        show_thinking=thinking is None or thinking.display != "omitted",
    )


# --- the prompt -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prompt:
    """Everything of a request that its prompt is rendered from."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_choice: wire.ToolChoice
    reasoning: wire.Reasoning
    template_kwargs: dict[str, Any]
    media: tuple[MediaRef, ...]


def prompt_of(request: PromptRequest) -> Prompt:
    """Raises `InvalidRequest`, naming the field at fault."""
    check_plain(request.chat_template_kwargs, "chat_template_kwargs")
    attachments = Attachments()
    messages = neutral_messages(request.system, request.messages, attachments)
    choice = _choice(request.tool_choice)
    kwargs = request.chat_template_kwargs or {}
    if prefills(messages):
        kwargs = {"add_generation_prompt": False, "continue_final_message": True, **kwargs}
    return Prompt(
        messages=messages,
        tools=chosen(neutral_tools(request.tools or ()), choice),
        tool_choice=choice,
        reasoning=_reasoning(request),
        template_kwargs=kwargs,
        media=attachments.refs,
    )


_MODES: dict[str, Literal["auto", "none", "required", "named"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "named",
    "none": "none",
}


def _choice(choice: ToolChoice | None) -> wire.ToolChoice:
    if choice is None:
        return wire.ToolChoice()
    if choice.type == "tool" and choice.name is None:
        raise InvalidRequest(
            "tool_choice.name: this field is required for type 'tool'", param="tool_choice.name"
        )
    return wire.ToolChoice(
        mode=_MODES[choice.type],
        name=choice.name if choice.type == "tool" else None,
        parallel=not choice.disable_parallel_tool_use,
    )


def _reasoning(request: PromptRequest) -> wire.Reasoning:
    """Adaptive leaves it to the model, whose template has a default of its own."""
    effort = request.output_config.effort if request.output_config else None
    thinking = request.thinking
    if thinking is None or thinking.type == "adaptive":
        return wire.Reasoning(effort=effort)
    if thinking.type == "disabled":
        return wire.Reasoning(enabled=False, effort=effort)
    return wire.Reasoning(enabled=True, budget_tokens=thinking.budget_tokens, effort=effort)


# --- the call -------------------------------------------------------------------------------------


def _format(request: MessagesRequest) -> wire.Format:
    asked, path = request.output_format, "output_format"
    if request.output_config and request.output_config.format:
        asked, path = request.output_config.format, "output_config.format"
    if asked is None:
        return wire.Format()
    check_plain(asked.schema, f"{path}.schema")
    return wire.Format("json_schema", asked.schema)


def _generate(
    request: MessagesRequest,
    prompt: Prompt,
    answer: wire.Format,
    call_id: int,
    defaults: Defaults,
) -> wire.Generate:
    """The request with the model's defaults for what the client left open."""
    return wire.Generate(
        id=call_id,
        messages=prompt.messages,
        sampling=sampling(request, defaults),
        max_tokens=request.max_tokens,
        stop=tuple(request.stop_sequences or ()),
        template_kwargs={**defaults.template_kwargs, **prompt.template_kwargs},
        tools=prompt.tools,
        tool_choice=prompt.tool_choice,
        format=answer,
        reasoning=prompt.reasoning,
        parsers=defaults.parsers,
    )
