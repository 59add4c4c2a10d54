"""The prompt of an Anthropic request: its system texts, turns and tools, in the neutral form.

Texts and images get through; other content is refused by name and place. Templates want strict
turns, so neighbouring turns of one role are joined, results of tools come before the text of their
turn, and a system message in mid conversation becomes a marked text of the user's.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.api.media import Attachments
from gateway.api.messages_common import Calls
from gateway.api.parts import Content, joined
from gateway.api.tools import MAX_NAME, MAX_TOOLS, declared
from gateway.errors import InvalidRequest, Unsupported

log = logging.getLogger("gateway.messages")

MAX_MESSAGES = 100_000
MAX_ID = 512

BILLING = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with such a line. It differs in every request, so a prompt
that holds it is never found in the prompt cache."""

SIGNATURE = "mlx-gateway-"

_BETWEEN = "\n"
"""Between the texts of one turn."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]

# --- what a request holds -------------------------------------------------------------------------


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class InRequest(msgspec.Struct, frozen=True, tag="base64"):
    media_type: str
    data: str


class Elsewhere(msgspec.Struct, frozen=True, tag="url"):
    url: str


class Image(msgspec.Struct, frozen=True, tag="image"):
    source: InRequest | Elsewhere

    @property
    def url(self) -> str:
        source = self.source
        if isinstance(source, Elsewhere):
            return source.url
        return f"data:{source.media_type};base64,{source.data}"


class Document(msgspec.Struct, frozen=True, tag="document"):
    pass


class Thinking(msgspec.Struct, frozen=True, tag="thinking"):
    thinking: str
    signature: str | None = None


class RedactedThinking(msgspec.Struct, frozen=True, tag="redacted_thinking"):
    pass


class ToolUse(msgspec.Struct, frozen=True, tag="tool_use"):
    id: Id
    name: Name
    input: dict[str, Any]


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result"):
    tool_use_id: Id
    content: str | list[Text | Image | Document] | None = None
    is_error: bool | None = None


Block = Text | Image | Document | Thinking | RedactedThinking | ToolUse | ToolResult


class Turn(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct, frozen=True):
    """`type` absent or "custom" is the client's own tool; any other is one of Anthropic's."""

    type: str | None = None
    name: Name | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


System = str | list[Text]
Turns = Annotated[list[Turn], Meta(min_length=1, max_length=MAX_MESSAGES)]
Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]

# --- turns ----------------------------------------------------------------------------------------


def neutral_messages(
    system: System | None, turns: Sequence[Turn], attachments: Attachments
) -> list[dict[str, Any]]:
    """Messages as chat templates take them, their images noted in `attachments`.

    Raises `InvalidRequest`, naming the block at fault.
    """
    leading = [_without_billing(text) for text in _texts(system)]
    conversation = _Conversation(attachments)
    for index, turn in enumerate(turns):
        path = f"messages[{index}].content"
        match turn.role:
            case "system":
                text = _joined(_only_texts(turn.content, path))
                if conversation.messages:
                    conversation.say("user", f"<system-reminder>\n{text}\n</system-reminder>")
                else:
                    leading.append(text)
            case "user":
                conversation.user(turn.content, path)
            case "assistant":
                conversation.assistant(turn.content, path)
    prompt = "\n\n".join(text for text in leading if text)
    head = [{"role": "system", "content": prompt}] if prompt else []
    return head + conversation.messages


def prefills(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the answer has to go on where the last message, the assistant's, ends."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and bool(last["content"]) and "tool_calls" not in last


class _Conversation:
    """The turns so far; the owner of `messages`."""

    def __init__(self, attachments: Attachments) -> None:
        self.messages: list[dict[str, Any]] = []
        self._calls = Calls()
        self._attachments = attachments

    def say(self, role: str, content: Content) -> None:
        """What this role says, as a part of its running turn or in a new one."""
        last = self._turn(role)
        last["content"] = joined([last["content"], content], _BETWEEN)

    def user(self, content: str | list[Block], path: str) -> None:
        blocks: list[Block] = [Text(content)] if isinstance(content, str) else content
        contents: list[Content] = []
        answered = False
        for number, block in enumerate(blocks):
            at = f"{path}[{number}]"
            match block:
                case Text(text):
                    contents.append(text)
                case ToolResult():
                    self._result(block, at)
                    answered = True
                case Image():
                    contents.append([self._attachments.add(block.url, at)])
                case Thinking() | RedactedThinking() | ToolUse():
                    raise _misplaced(block, "user", at)
                case Document():
                    raise _not_served(block, at)
        if contents or not answered:
            self.say("user", joined(contents, _BETWEEN))

    def assistant(self, content: str | list[Block], path: str) -> None:
        turn = self._turn("assistant")
        texts, thoughts, calls = [turn["content"]], [turn.get("reasoning_content", "")], []
        blocks: list[Block] = [Text(content)] if isinstance(content, str) else content
        for number, block in enumerate(blocks):
            at = f"{path}[{number}]"
            match block:
                case Text(text):
                    texts.append(text)
                case Thinking(thought, mark):
                    # Another model's thoughts, or edited ones, are not this model's to go on with.
                    thoughts.append(thought if mark == signature(thought) else "")
                case RedactedThinking():
                    pass  # sealed by somebody else, so there is nothing to be read in it
                case ToolUse():
                    calls.append(self._calls.call(block.id, block.name, block.input, f"{at}.input"))
                case ToolResult():
                    raise _misplaced(block, "assistant", at)
                case Image() | Document():
                    raise _not_served(block, at)
        turn["content"] = _joined(texts)
        if any(thoughts):
            turn["reasoning_content"] = _joined(thoughts)
        if calls:
            turn["tool_calls"] = [*turn.get("tool_calls", ()), *calls]

    def _result(self, block: ToolResult, path: str) -> None:
        content = joined(self._told(block.content or "", f"{path}.content"), _BETWEEN)
        if block.is_error:
            # Templates have no other way to tell a failure from a result.
            content = joined(["Error: ", content])
        self.messages.append(self._calls.result(block.tool_use_id, content, f"{path}.tool_use_id"))

    def _told(self, content: str | Sequence[Block], path: str) -> Iterator[Content]:
        """What a result holds: texts and images."""
        for number, block in enumerate([Text(content)] if isinstance(content, str) else content):
            at = f"{path}[{number}]"
            if isinstance(block, Text):
                yield block.text
            elif isinstance(block, Image):
                yield [self._attachments.add(block.url, at)]
            else:
                raise _not_served(block, at)

    def _turn(self, role: str) -> dict[str, Any]:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        return self.messages[-1]


def _texts(content: System | None) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.text for block in content or ()]


def _only_texts(content: str | Sequence[Block], path: str) -> list[str]:
    """The texts of blocks that are nothing else."""
    if isinstance(content, str):
        return [content]
    texts = []
    for number, block in enumerate(content):
        if not isinstance(block, Text):
            raise _not_served(block, f"{path}[{number}]")
        texts.append(block.text)
    return texts


def _joined(texts: Sequence[str]) -> str:
    return _BETWEEN.join(text for text in texts if text)


def _without_billing(text: str) -> str:
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING) else text


def _kind(block: Block) -> str:
    return str(type(block).__struct_config__.tag)


def _misplaced(block: Block, role: str, path: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path}: a {role} turn cannot hold a block of type {_kind(block)!r}", param=path
    )


def _not_served(block: Block, path: str) -> Unsupported:
    return Unsupported(
        f"{path}: blocks of type {_kind(block)!r} are not served here; send text", param=path
    )


# --- thoughts -------------------------------------------------------------------------------------


def signature(thinking: str) -> str:
    """The mark of thoughts that came from here; it tells them from others and from edited ones.

    It is no secret and proves nothing to anybody else.
    """
    return SIGNATURE + hashlib.blake2b(thinking.encode(), digest_size=16).hexdigest()


# --- tools ----------------------------------------------------------------------------------------


def neutral_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The client's own tools in the form of chat templates; Anthropic's are left out.

    Raises `InvalidRequest`, naming the tool at fault.
    """
    neutral: list[dict[str, Any]] = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if tool.type not in (None, "custom"):
            _note_left_out(tool.type[:100])
            continue
        if tool.name is None:
            raise _required(f"{path}.name")
        if tool.input_schema is None:
            raise _required(f"{path}.input_schema")
        if tool.name in names:
            raise InvalidRequest(
                f"{path}.name: {tool.name!r} is declared twice", param=f"{path}.name"
            )
        names.add(tool.name)
        schema_at = f"{path}.input_schema"
        neutral.append(declared(tool.name, tool.description, tool.input_schema, schema_at))
    return neutral


@lru_cache(maxsize=64)
def _note_left_out(kind: str) -> None:
    """One line per type, however often it comes; Claude Code sends the same with every request."""
    log.warning("tools of type %r need Anthropic's own servers or client and are left out", kind)


def _required(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: this field is required", param=path)
