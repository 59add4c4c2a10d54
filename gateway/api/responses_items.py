"""Input items of the Responses API: their shapes, and the conversation that they make.

Texts and images get through; other content is refused by name and place. What one turn of the
model said arrives as several items (thoughts, text, calls) and becomes one message
again. Templates want strict turns, so neighbouring turns of the user are joined, and a system
message in mid conversation becomes a marked text of the user's.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Meta

from gateway.api.media import Attachments, InputAudio
from gateway.api.messages_common import Calls
from gateway.api.parts import Content, joined
from gateway.api.tools import MAX_NAME
from gateway.errors import InvalidRequest, NotFound, Unsupported
from gateway.security.containers import MediaKind

log = logging.getLogger("gateway.responses")

MAX_ITEMS = 65_536
MAX_ID = 512

Json = dict[str, Any]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]

SEAL = "mlx-gateway-"
"""How the `encrypted_content` of ours begins. It keeps thoughts, not secrets: it is only opaque."""

IMAGE = "input_image"
VIDEO = "input_video"
AUDIO = "input_audio"

_MEDIA: dict[str, MediaKind] = {IMAGE: "image", VIDEO: "video", AUDIO: "audio"}
"""Types of parts that are media. Videos are an addition of open-weight servers."""

RECORDS = frozenset(
    {
        *("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call"),
        *("mcp_list_tools", "mcp_call", "compaction"),
    }
)
"""What a hosted tool of another service did. No model here can, so these are left out."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a content, an output or a summary: a text or one of the media.

    Parts of other types are refused by name.

    `detail` says how finely to look at an image, which is the model's own affair here.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    video_url: str | None = None
    input_audio: InputAudio | None = None
    detail: str | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Any input item, and any output item that comes back as one.

    Without a `type` it is a message when it has a role, and a reference when it has none. Names
    and ids of calls are checked in the conversation, for a model may have made them up.
    """

    type: str | None = None
    id: Id | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None

    @property
    def kind(self) -> str:
        if self.type is not None:
            return self.type
        return "item_reference" if self.role is None else "message"


Items = Annotated[list[Item], Meta(min_length=1, max_length=MAX_ITEMS)]

_T = TypeVar("_T")


def items_of(given: str | Sequence[Item]) -> list[Item]:
    """The items of an input; a text is one message of the user's."""
    if isinstance(given, str):
        return [Item(type="message", role="user", content=given)]
    return list(given)


def dereferenced(items: Sequence[Item], find: Callable[[str], Item | None]) -> list[Item]:
    """The items with every reference replaced by what `find` has under its id.

    Raises `NotFound` for an id that it does not have.
    """
    found = []
    for index, item in enumerate(items):
        if item.kind != "item_reference":
            found.append(item)
            continue
        path = f"input[{index}].id"
        there = find(_required(item.id, path))
        if there is None:
            raise NotFound(f"{path}: no item {item.id!r} is kept here; send it whole", param=path)
        found.append(there)
    return found


def listed(item: Item) -> Json:
    """The item as `input_items` shows it: with an id, its content as a list of parts."""
    match item.kind:
        case "message":
            said = "output_text" if item.role == "assistant" else "input_text"
            head = {"id": item.id or new_id("msg"), "type": "message", "role": item.role}
            return {**head, "status": "completed", "content": _listed_parts(item.content, said)}
        case "function_call":
            arguments = item.arguments or ""
            if not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()
            head = {"id": item.id or new_id("fc"), "type": "function_call"}
            call = {"call_id": item.call_id, "name": item.name, "arguments": arguments}
            return {**head, **call, "status": item.status or "completed"}
        case "function_call_output":
            output = item.output
            if not isinstance(output, str):
                output_parts = _listed_parts(output, "input_text")
                return {**_output_head(item), "output": output_parts}
            return {**_output_head(item), "output": output}
        case "reasoning":
            told = {"id": item.id or new_id("rs"), "type": "reasoning"}
            summary = _listed_parts(item.summary, "summary_text")
            content = _listed_parts(item.content, "reasoning_text")
            sealed = {"encrypted_content": item.encrypted_content}
            return {**told, "summary": summary, "content": content, **sealed}
        case kind:
            return {"id": item.id or new_id("item"), "type": kind, "status": item.status}


def _output_head(item: Item) -> Json:
    head = {"id": item.id or new_id("fco"), "type": "function_call_output"}
    return {**head, "call_id": item.call_id, "status": "completed"}


def _listed_parts(content: str | Sequence[Part] | None, kind: str) -> list[Json]:
    parts = [Part(type=kind, text=content)] if isinstance(content, str) else content or ()
    return [_listed_part(part) for part in parts]


def _listed_part(part: Part) -> Json:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    if part.type == IMAGE:
        return {"type": IMAGE, "image_url": part.image_url, "detail": part.detail or "auto"}
    if part.type == VIDEO:
        return {"type": VIDEO, "video_url": part.video_url}
    if part.type == AUDIO:
        return {"type": AUDIO, "input_audio": msgspec.to_builtins(part.input_audio)}
    told: Json = {"type": part.type, "text": part.text}
    return {**told, "annotations": []} if part.type == "output_text" else told


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


# --- thoughts that only we can read -------------------------------------------------------------


def sealed(thoughts: str) -> str:
    """Thoughts as a client without a store here carries them from turn to turn."""
    return SEAL + base64.b64encode(thoughts.encode()).decode()


def _unsealed(seal: str | None) -> str:
    """What another service has sealed means nothing to a model here."""
    if seal is None or not seal.startswith(SEAL):
        return ""
    try:
        return base64.b64decode(seal.removeprefix(SEAL), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


# --- the conversation ---------------------------------------------------------------------------


class Conversation:
    """Messages as chat templates take them; the owner of `messages` and of `attachments`."""

    def __init__(self, instructions: str | None = None) -> None:
        self.messages: list[Json] = []
        self.attachments = Attachments()
        self._calls = Calls()
        self._thoughts: list[str] = []
        if instructions:
            self.messages.append({"role": "system", "content": instructions})

    def add(self, item: Item, path: str) -> None:
        """The next item. Raises `InvalidRequest`, naming the field under `path`."""
        match item.kind:
            case "message":
                self._message(item, path)
            case "reasoning":
                self._thoughts.append(_thoughts(item, path))
            case "function_call":
                self._call(item, path)
            case "function_call_output":
                if item.output is None:
                    raise _missing(f"{path}.output")
                output = _content(item.output, f"{path}.output", self.attachments)
                self._thoughts.clear()
                self.messages.append(self._calls.result(item.call_id, output, f"{path}.call_id"))
            case kind if kind in RECORDS:
                warn_once(f"input items of type {kind} come from other services; left out")
            case kind:
                raise Unsupported(
                    f"{path}.type: items of type {kind[:100]!r} are not served; send messages, "
                    "function calls and their outputs",
                    param=f"{path}.type",
                )

    def _message(self, item: Item, path: str) -> None:
        if item.content is None:
            raise _missing(f"{path}.content")
        at = f"{path}.content"
        if _required(item.role, f"{path}.role") == "user":
            self._asked(_content(item.content, at, self.attachments))
            return
        text = _text(item.content, at)
        match item.role:
            case "assistant":
                self._said(text)
            case _ if all(message["role"] == "system" for message in self.messages):
                self._join("system", text)
            case _:
                self._asked(f"<system-reminder>\n{text}\n</system-reminder>")

    def _asked(self, content: Content) -> None:
        self._thoughts.clear()
        self._join("user", content)

    def _said(self, text: str) -> None:
        turn = self._turn()
        turn["content"] = f"{turn['content']}\n\n{text}" if turn["content"] else text

    def _call(self, item: Item, path: str) -> None:
        if item.status == "incomplete":
            return  # the token limit cut it in two
        call_id = _short(item.call_id, MAX_ID, f"{path}.call_id")
        name = _short(item.name, MAX_NAME, f"{path}.name")
        call = self._calls.call(call_id, name, item.arguments, f"{path}.arguments")
        self._turn().setdefault("tool_calls", []).append(call)

    def _turn(self) -> Json:
        """The model's turn that is going on, with what it has thought before."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        turn = self.messages[-1]
        thoughts = [text for text in self._thoughts if text]
        self._thoughts.clear()
        if thoughts:
            turn["reasoning_content"] = "\n\n".join(
                [*filter(None, [turn.get("reasoning_content")]), *thoughts]
            )
        return turn

    def _join(self, role: str, content: Content) -> None:
        if self.messages and self.messages[-1]["role"] == role:
            last = self.messages[-1]
            last["content"] = joined([last["content"], content], "\n\n")
        else:
            self.messages.append({"role": role, "content": content})


_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def _content(content: str | Sequence[Part], path: str, attachments: Attachments) -> Content:
    """A content that can hold media, which `attachments` notes."""
    if isinstance(content, str):
        return content
    return joined(
        [attachments.add(_address(part, at), at, _MEDIA[part.type])]
        if part.type in _MEDIA
        else _part(part, at)
        for part, at in ((part, f"{path}[{index}]") for index, part in enumerate(content))
    )


def _address(part: Part, path: str) -> str | None:
    if part.type == IMAGE and part.image_url is None and part.file_id is not None:
        raise Unsupported(
            f"{path}.file_id: no files are kept here; send the image in image_url",
            param=f"{path}.file_id",
        )
    if part.type == AUDIO:
        return None if part.input_audio is None else part.input_audio.url
    return part.video_url if part.type == VIDEO else part.image_url


def _text(content: str | Sequence[Part], path: str) -> str:
    """All of a content of texts as one."""
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Part, path: str) -> str:
    if part.type == "refusal":
        return _required(part.refusal, f"{path}.refusal")
    if part.type not in _TEXTS:
        raise InvalidRequest(
            f"{path}: parts of type {part.type[:100]!r} are not served; send text", param=path
        )
    return _required(part.text, f"{path}.text")


def _thoughts(item: Item, path: str) -> str:
    """What is said in full goes before what is sealed, and that before a summary."""
    if item.content:
        return _text(item.content, f"{path}.content")
    return _unsealed(item.encrypted_content) or _text(item.summary or "", f"{path}.summary")


def _short(value: str | None, longest: int, path: str) -> str:
    text = _required(value, path)
    if not 0 < len(text) <= longest:
        raise InvalidRequest(f"{path}: expected 1 to {longest} characters", param=path)
    return text


def _required(value: _T | None, path: str) -> _T:
    if value is None:
        raise _missing(path)
    return value


def _missing(path: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: this field is required", param=path)


@lru_cache(maxsize=64)
def warn_once(message: str) -> None:
    """A client repeats itself in every request; the log need not."""
    log.warning("%s", message)
