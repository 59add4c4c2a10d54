"""`POST /v1/responses`: the half before the exchange, from a body to the neutral request.

Field rules are those of the OpenAI API reference, with the extensions that open-weight servers
share. Null means not given. What would change the answer and cannot be honoured is refused; tools
that another service would host are left out where the model is free not to call them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.decode import BodyDecoder, check_plain
from gateway.api.dialect import Defaults
from gateway.api.formats import TEXT, named_format
from gateway.api.media import VideoLength, VideoRate
from gateway.api.openai_fields import MaxTokens, ModelName
from gateway.api.responses_encode import ResponsesDecoded
from gateway.api.responses_items import (
    Conversation,
    Id,
    Item,
    Items,
    dereferenced,
    items_of,
    listed,
    warn_once,
)
from gateway.api.sampling_fields import SamplingFields, merged, sampling
from gateway.api.service_fields import wish
from gateway.api.tools import MAX_NAME, MAX_TOOLS, chosen, declared, tool_name
from gateway.errors import InvalidRequest, Unsupported

MAX_TOP_LOGPROBS = 20
MAX_INCLUDE = 64
MAX_METADATA = 16

LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Label = Annotated[str, Meta(max_length=512)]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    name: Name | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One function by name, or `allowed_tools`: some of the tools, in a mode of their own."""

    type: str
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[AllowedTool], Meta(max_length=MAX_TOOLS)] | None = None


class ReasoningConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`generate_summary` is the earlier name of `summary`."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A schema is enforced whether it is called strict or not."""

    type: str
    name: Label | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """What is read of a request; unknown fields are ignored."""

    model: ModelName
    input: str | Items
    instructions: str | None = None
    previous_response_id: Id | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: MaxTokens | None = None
    max_tool_calls: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Label], Meta(max_length=MAX_INCLUDE)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    metadata: Annotated[dict[str, Label], Meta(max_length=MAX_METADATA)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    video_fps: VideoRate | None = None
    video_max_frames: VideoLength | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Known and not served: these values pass, anything else is refused by name.
    truncation: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None


_decoder = BodyDecoder(ResponsesRequest)

_OTHERS: dict[str, tuple[Any, ...]] = {
    "truncation": ("disabled",),
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "moderation": (),
}


class History(Protocol):
    """What is kept of earlier requests, as far as the owner of this one may know it."""

    @property
    def owner(self) -> str: ...

    def item(self, item_id: str) -> Item | None:
        """An item by its id."""

    def turns(self, response_id: str) -> list[Item]:
        """Every item up to and including a response's. Raises `NotFound`, `InvalidRequest`."""


def decode(body: bytes, history: History) -> ResponsesDecoded:
    """The neutral request, completed by what is kept.

    Raises `InvalidRequest`, naming the field, and `NotFound` for what is not kept.
    """
    request = _decoder.decode(body)
    _refuse_others(request)
    check_plain(request.chat_template_kwargs, "chat_template_kwargs")
    items = dereferenced(items_of(request.input), history.item)
    store = request.store is not False
    tools = _tools(request)
    include = request.include or ()
    top_logprobs = request.top_logprobs or 0
    reasoning = request.reasoning or ReasoningConfig()
    conversation = _conversation(request, items, history)
    asked = wire.Generate(
        id=0,
        messages=conversation.messages,
        max_tokens=request.max_output_tokens,
        tools=tools.shown,
        tool_choice=tools.choice,
        format=_format(request),
        logprobs=top_logprobs if top_logprobs or LOGPROBS in include else None,
        video=wire.VideoFrames(request.video_fps, request.video_max_frames),
    )
    return ResponsesDecoded(
        model=request.model,
        stream=bool(request.stream),
        include_usage=True,
        make=lambda call_id, defaults: _generate(request, asked, call_id, defaults),
        media=conversation.attachments.refs,
        timeout_s=request.timeout,
        wish=wish(request),
        owner=history.owner,
        fields=_fields(request, tools),
        items=msgspec.json.encode([listed(item) for item in items] if store else []),
        previous=request.previous_response_id,
        store=store,
        background=bool(request.background),
        summary=(reasoning.summary or reasoning.generate_summary) is not None,
        sealed=SEALED in include,
    )


def _refuse_others(request: ResponsesRequest) -> None:
    for field, neutral in _OTHERS.items():
        value = getattr(request, field)
        if value is not None and value not in neutral:
            raise Unsupported(f"{field}: this is not served; leave it out", param=field)
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        raise Unsupported("text.verbosity: only medium is served", param="text.verbosity")
    if request.background and request.store is False:
        raise InvalidRequest(
            "background: needs store, because such a response is fetched later", param="background"
        )


def _conversation(
    request: ResponsesRequest, items: Sequence[Item], history: History
) -> Conversation:
    """Instructions are of one request alone; all the rest of an earlier response is kept."""
    conversation = Conversation(request.instructions)
    if request.previous_response_id is not None:
        for item in history.turns(request.previous_response_id):
            conversation.add(item, "previous_response_id")
    for index, item in enumerate(items):
        conversation.add(item, f"input[{index}]")
    return conversation


# --- tools --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tools:
    """`declared`: as the client did, less what is left out; `shown`: what the model sees."""

    declared: list[Tool]
    shown: list[dict[str, Any]]
    choice: wire.ToolChoice


def _tools(request: ResponsesRequest) -> _Tools:
    choice = _choice(request.tool_choice, request.parallel_tool_calls)
    functions, neutral = [], []
    for index, tool in enumerate(request.tools or ()):
        path = f"tools[{index}]"
        if tool.type != "function":
            _leave_out(tool.type, choice, path)
            continue
        if tool.name is None:
            raise InvalidRequest(f"{path}.name: this field is required", param=f"{path}.name")
        functions.append(tool)
        neutral.append(declared(tool.name, tool.description, tool.parameters, f"{path}.parameters"))
    return _Tools(functions, chosen(_allowed(request.tool_choice, neutral), choice), choice)


def _leave_out(kind: str, choice: wire.ToolChoice, path: str) -> None:
    if choice.mode not in ("auto", "none"):
        raise Unsupported(
            f"{path}.type: tools of type {kind[:100]!r} are not served, and tool_choice asks for "
            "a call; declare functions",
            param=f"{path}.type",
        )
    warn_once(f"tools of type {kind[:100]!r} are not served; left out")


def _choice(choice: str | Choice | None, parallel: bool | None) -> wire.ToolChoice:
    several = parallel is not False
    match choice:
        case None | "auto":
            return wire.ToolChoice(parallel=several)
        case "none":
            return wire.ToolChoice("none", parallel=several)
        case "required":
            return wire.ToolChoice("required", parallel=several)
        case Choice(type="function", name=None):
            raise InvalidRequest(
                "tool_choice.name: this field is required", param="tool_choice.name"
            )
        case Choice(type="function", name=name):
            # One function by name is one call of it.
            return wire.ToolChoice("named", name, parallel=False)
        case Choice(type="allowed_tools"):
            return wire.ToolChoice(choice.mode or "auto", parallel=several)
        case _:
            raise Unsupported(
                "tool_choice.type: only function and allowed_tools are served",
                param="tool_choice.type",
            )


def _allowed(choice: str | Choice | None, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(choice, Choice) or choice.type != "allowed_tools":
        return tools
    names = {tool.name for tool in choice.tools or () if tool.type == "function"}
    missing = names - {tool_name(tool) for tool in tools}
    if missing:
        raise InvalidRequest(
            f"tool_choice.tools: {sorted(map(str, missing))} are not among the tools of this "
            "request",
            param="tool_choice.tools",
        )
    return [tool for tool in tools if tool_name(tool) in names]


# --- the call -----------------------------------------------------------------------------------


def _format(request: ResponsesRequest) -> wire.Format:
    asked = request.text.format if request.text else None
    if asked is None:
        return TEXT
    if asked.type == "json_schema" and asked.schema is None:
        path = "text.format.schema"
        raise InvalidRequest(f"{path}: this field is required", param=path)
    return named_format(asked.type, asked.schema, "text.format.type", "text.format.schema")


def _generate(
    request: ResponsesRequest, asked: wire.Generate, call_id: int, defaults: Defaults
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


def _reasoning(request: ResponsesRequest, kwargs: dict[str, Any]) -> wire.Reasoning:
    """A switch by name goes before an effort, and that before the template's own argument."""
    effort = request.reasoning.effort if request.reasoning else None
    in_template = kwargs.get("enable_thinking")
    enabled = request.enable_thinking
    if enabled is None and effort == "none":
        enabled = False
    if enabled is None and isinstance(in_template, bool):
        enabled = in_template
    return wire.Reasoning(
        enabled=enabled,
        budget_tokens=request.thinking_token_budget,
        effort=None if effort == "none" else effort,
    )


# --- what the response repeats ------------------------------------------------------------------


def _fields(request: ResponsesRequest, tools: _Tools) -> dict[str, Any]:
    """The fields of a response that are those of its request."""
    reasoning = request.reasoning or ReasoningConfig()
    text = request.text.format if request.text else None
    return {
        "created_at": int(time.time()),
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": request.model,
        "parallel_tool_calls": tools.choice.parallel,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort,
            "summary": reasoning.summary or reasoning.generate_summary,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": _format_fields(text), "verbosity": "medium"},
        "tool_choice": _choice_fields(request.tool_choice),
        "tools": [_tool_fields(tool) for tool in tools.declared],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }


def _tool_fields(tool: Tool) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(tool)
    return fields


def _format_fields(text: TextFormat | None) -> dict[str, Any]:
    if text is None or text.type != "json_schema":
        return {"type": text.type if text else "text"}
    head = {"type": text.type, "name": text.name or "answer", "schema": text.schema}
    return {**head, "description": None, "strict": True}


def _choice_fields(choice: str | Choice | None) -> str | dict[str, Any]:
    if not isinstance(choice, Choice):
        return choice or "auto"
    if choice.type == "function":
        return {"type": "function", "name": choice.name}
    tools = [msgspec.to_builtins(tool) for tool in choice.tools or ()]
    return {"type": "allowed_tools", "mode": choice.mode or "auto", "tools": tools}
