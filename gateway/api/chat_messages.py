"""Messages and tools of the OpenAI chat dialect: their shapes, and the neutral form of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.media import Attachments, InputAudio
from gateway.api.messages_common import Calls
from gateway.api.parts import Content, joined
from gateway.api.tools import MAX_NAME, declared
from gateway.errors import InvalidRequest, Unsupported
from gateway.security.containers import MediaKind

MAX_CALLS = 1024

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` says how finely to look at it, which is the model's own affair here."""

    url: str


class MediaUrl(msgspec.Struct, frozen=True, kw_only=True):
    url: str


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a content: a text or one of the media; the rest is refused by name.

    `image`, `video` and `audio` hold an address, as the chat templates of some families have it.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    video_url: MediaUrl | str | None = None
    audio_url: MediaUrl | str | None = None
    input_audio: InputAudio | None = None
    image: str | None = None
    video: str | None = None
    audio: str | None = None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` is JSON text; some clients send the object itself."""

    name: Name
    arguments: str | dict[str, Any] | None = None


class AssistantCall(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(min_length=1, max_length=512)]
    function: CalledFunction
    type: Literal["function"] | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    tool_calls: Annotated[list[AssistantCall], Meta(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: Any = None
    audio: Any = None


class Function(msgspec.Struct, frozen=True, kw_only=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """Only functions are served; tools of other types are refused by name."""

    type: str
    function: Function | None = None


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: Name


class NamedChoice(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["function"]
    function: NamedFunction


Choice = Literal["none", "auto", "required"] | NamedChoice


_MEDIA: dict[str, MediaKind] = {
    "image_url": "image",
    "image": "image",
    "video_url": "video",
    "video": "video",
    "audio_url": "audio",
    "audio": "audio",
    "input_audio": "audio",
}
"""Types of parts that are media; each has its address in the field of its own name."""


def conversation(messages: Sequence[ChatMessage], attachments: Attachments) -> list[dict[str, Any]]:
    """The messages as chat templates take them, their media noted in `attachments`.

    Raises `InvalidRequest`, naming the field.
    """
    calls = Calls()
    return [
        _neutral(message, calls, attachments, f"messages[{i}]")
        for i, message in enumerate(messages)
    ]


def _neutral(
    message: ChatMessage, calls: Calls, attachments: Attachments, path: str
) -> dict[str, Any]:
    content = _content(message, attachments, path)
    if message.role == "assistant":
        assert not isinstance(content, list)  # media are refused in its contents
        return _assistant(message, content or "", calls, path)
    if content is None:
        raise InvalidRequest(
            f"{path}.content: a {message.role} message needs a content", param=f"{path}.content"
        )
    if message.role == "tool":
        return calls.result(message.tool_call_id, content, f"{path}.tool_call_id")
    # Chat templates know "system"; "developer" is OpenAI's later name for it.
    role = "system" if message.role == "developer" else message.role
    neutral = {"role": role, "content": content}
    return {**neutral, "name": message.name} if message.name else neutral


def _content(message: ChatMessage, attachments: Attachments, path: str) -> Content | None:
    content = message.content
    if content is None or isinstance(content, str):
        return content
    return joined(
        _part(part, message.role, attachments, f"{path}.content[{index}]")
        for index, part in enumerate(content)
    )


def _part(part: ContentPart, role: str, attachments: Attachments, path: str) -> Content:
    kind = _MEDIA.get(part.type)
    if kind is None or role not in ("user", "tool"):
        return _text(part, path)
    return [attachments.add(_url(part), path, kind)]


def _url(part: ContentPart) -> str | None:
    value: ImageUrl | MediaUrl | InputAudio | str | None = getattr(part, part.type)
    match value:
        case ImageUrl() | MediaUrl() | InputAudio():
            return value.url
        case _:
            return value


def _text(part: ContentPart, path: str) -> str:
    if part.type not in ("text", "input_text", "output_text", "refusal"):
        raise InvalidRequest(
            f"{path}: parts of type {part.type[:100]!r} are not served here; send text", param=path
        )
    field = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, field)
    if text is None:
        raise InvalidRequest(f"{path}.{field}: this field is required", param=f"{path}.{field}")
    return text


def _assistant(message: ChatMessage, content: str, calls: Calls, path: str) -> dict[str, Any]:
    for field in ("function_call", "audio"):
        if getattr(message, field) is not None:
            raise Unsupported(
                f"{path}.{field}: not served; tool calls belong in tool_calls, text in content",
                param=f"{path}.{field}",
            )
    neutral: dict[str, Any] = {"role": "assistant", "content": content or message.refusal or ""}
    if trace := message.reasoning_content or message.reasoning:
        neutral["reasoning_content"] = trace
    if message.tool_calls:
        neutral["tool_calls"] = [
            calls.call(
                call.id,
                call.function.name,
                call.function.arguments,
                f"{path}.tool_calls[{i}].function.arguments",
            )
            for i, call in enumerate(message.tool_calls)
        ]
    return neutral


def tools_of(tools: Sequence[Tool] | None) -> list[dict[str, Any]]:
    """The tools as declared, in the neutral form. Raises `InvalidRequest`, naming the field."""
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]


def _tool(tool: Tool, path: str) -> dict[str, Any]:
    if tool.type != "function":
        raise Unsupported(
            f"{path}.type: tools of type {tool.type[:100]!r} are not served; declare functions",
            param=f"{path}.type",
        )
    function = tool.function
    if function is None:
        raise InvalidRequest(f"{path}.function: this field is required", param=f"{path}.function")
    parameters = f"{path}.function.parameters"
    return declared(function.name, function.description, function.parameters, parameters)


def choice_of(choice: Choice | None, parallel: bool | None) -> wire.ToolChoice:
    several = parallel is not False
    match choice:
        case None:
            return wire.ToolChoice(parallel=several)
        case NamedChoice():
            # One function by name is one call of it.
            return wire.ToolChoice("named", choice.function.name, parallel=False)
        case _:
            return wire.ToolChoice(choice, parallel=several)
