"""Neutral events to an Anthropic message, streamed or whole.

Events come in the order of generation and blocks in the order of events, one open at a time: an
event of another kind closes the open block. White space that no text follows makes no block, for
models put it between their calls and Anthropic's API refuses such a block when it comes back.
Shapes and the order of events are those of the streaming page of Anthropic's API reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import msgspec

from engines import wire
from gateway.api.dialect import Decoded
from gateway.api.errors import anthropic_error
from gateway.api.messages_prompt import signature
from gateway.api.sse import COMMENT
from gateway.errors import EngineFailed, GatewayError
from gateway.residency import Phase
from gateway.supervisor.call import CallFailed, CallItem, ClientLeft, Granted

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDecoded(Decoded):
    """Without `show_thinking` thoughts are told by their signature alone."""

    show_thinking: bool = True


# --- blocks ---------------------------------------------------------------------------------------

Kind = Literal["thinking", "text", "tool_use"]


@dataclass(frozen=True, slots=True)
class Opened:
    index: int
    kind: Kind
    call: wire.ToolCallStart | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of the open block; of a `tool_use` it is JSON."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    index: int
    kind: Kind


Change = Opened | Piece | Closed


class Blocks:
    """Cuts deltas into blocks; the owner of which one is open."""

    def __init__(self) -> None:
        self.open: Kind | None = None
        self._index = -1
        self._space = ""

    def take(self, delta: wire.Delta) -> Iterator[Change]:
        match delta:
            case wire.TextDelta():
                yield from self._text(delta.text)
            case wire.ReasoningDelta():
                if self.open != "thinking":
                    yield from self._begin("thinking")
                yield Piece("thinking", delta.text)
            case wire.ToolCallStart():
                yield from self._begin("tool_use", delta)
            case wire.ToolCallArguments():
                yield Piece("tool_use", delta.text)
            case _:
                assert_never(delta)

    def close(self) -> Iterator[Change]:
        self._space = ""
        if self.open is not None:
            closed = Closed(self._index, self.open)
            self.open = None
            yield closed

    def _text(self, text: str) -> Iterator[Change]:
        if self.open != "text":
            self._space += text
            if not self._space.strip():
                return
            text = self._space
            yield from self._begin("text")
        yield Piece("text", text)

    def _begin(self, kind: Kind, call: wire.ToolCallStart | None = None) -> Iterator[Change]:
        yield from self.close()
        self._index += 1
        self.open = kind
        yield Opened(self._index, kind, call)


# --- streamed -------------------------------------------------------------------------------------

_DELTAS: dict[Kind, tuple[bytes, bytes]] = {
    "thinking": (b"thinking_delta", b"thinking"),
    "text": (b"text_delta", b"text"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}


class EventEncoder:
    """Events to frames. After an error frame the stream ends without a `message_stop`."""

    def __init__(self, decoded: MessagesDecoded) -> None:
        self._model, self._serial = decoded.model, decoded.serial
        self._show_thinking = decoded.show_thinking
        self._blocks = Blocks()
        self._started = False
        self._head = b""
        self._thoughts: list[str] = []
        self._end: wire.ChoiceFinished | None = None

    def heartbeat(self) -> bytes:
        """A ping has its place inside a message; before that only a comment is safe."""
        return _frame({"type": "ping"}) if self._started else COMMENT

    def frames(self, items: Sequence[CallItem]) -> list[bytes]:
        frames: list[bytes] = []
        for item in items:
            match item:
                # Nearly every item of a stream is more of the block that is open.
                case wire.TextDelta() if self._blocks.open == "text":
                    frames.append(self._delta(item.text))
                case wire.ReasoningDelta() if self._blocks.open == "thinking":
                    frames.extend(self._thought(item.text))
                case wire.ToolCallArguments():
                    frames.append(self._delta(item.text))
                case wire.TextDelta() | wire.ReasoningDelta() | wire.ToolCallStart():
                    frames.extend(self._changes(self._blocks.take(item)))
                case wire.Started():
                    frames.append(self._start(item))
                case wire.ChoiceFinished():
                    self._end = item
                    frames.extend(self._changes(self._blocks.close()))
                case wire.Finished():
                    frames.extend(self._stop(item.usage))
                case _:
                    pass  # these have no frame in this dialect, or end the stream elsewhere
        return frames

    def error(self, error: GatewayError) -> bytes:
        return _frame(anthropic_error(error))

    def _start(self, started: wire.Started) -> bytes:
        self._started = True
        usage = wire.Usage(started.prompt_tokens, 0, started.cached_tokens)
        message = _message(self._serial, self._model, [], None, usage)
        return _frame({"type": "message_start", "message": message})

    def _changes(self, changes: Iterable[Change]) -> Iterator[bytes]:
        for change in changes:
            match change:
                case Opened():
                    yield self._open(change)
                case Piece("thinking", text):
                    yield from self._thought(text)
                case Piece():
                    yield self._delta(change.text)
                case Closed(index, kind):
                    if kind == "thinking":
                        mark = signature("".join(self._thoughts))
                        delta = {"type": "signature_delta", "signature": mark}
                        yield _frame(
                            {"type": "content_block_delta", "index": index, "delta": delta}
                        )
                    yield _frame({"type": "content_block_stop", "index": index})
                case _:
                    assert_never(change)

    def _open(self, opened: Opened) -> bytes:
        name, field = _DELTAS[opened.kind]
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (opened.index, name, field)
        )
        self._thoughts = []
        block = _block(opened.kind, opened.call, "")
        return _frame(
            {"type": "content_block_start", "index": opened.index, "content_block": block}
        )

    def _thought(self, text: str) -> tuple[bytes, ...]:
        self._thoughts.append(text)
        return (self._delta(text),) if self._show_thinking else ()

    def _delta(self, text: str) -> bytes:
        return self._head + msgspec.json.encode(text) + b"}}\n\n"

    def _stop(self, usage: wire.Usage) -> list[bytes]:
        delta = {"type": "message_delta", "delta": _ending(self._end), "usage": _usage(usage)}
        return [_frame(delta), _frame({"type": "message_stop"})]


def _frame(event: Json) -> bytes:
    """The name of an event is its type."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


# --- whole ----------------------------------------------------------------------------------------


class MessageEncoder:
    """Events to one message object."""

    def __init__(self, decoded: MessagesDecoded) -> None:
        self._model, self._serial = decoded.model, decoded.serial
        self._show_thinking = decoded.show_thinking
        self._blocks = Blocks()
        self._opened: list[tuple[Opened, list[str]]] = []
        self._end: wire.ChoiceFinished | None = None
        self._usage: wire.Usage | None = None

    def add(self, items: Sequence[CallItem]) -> None:
        for item in items:
            match item:
                case (
                    wire.TextDelta()
                    | wire.ReasoningDelta()
                    | wire.ToolCallStart()
                    | wire.ToolCallArguments()
                ):
                    self._take(self._blocks.take(item))
                case wire.ChoiceFinished():
                    self._end = item
                case wire.Finished():
                    self._usage = item.usage
                case Phase() | Granted() | ClientLeft() | CallFailed():
                    pass  # what comes before a message, or instead of one
                case wire.Started() | wire.PromptProgress():
                    pass  # nothing of these is in a message
                case wire.Bytes() | wire.Scores() | wire.Segment() | wire.Transcript():
                    pass  # no model that generates text sends these
                case _:
                    assert_never(item)

    def body(self) -> bytes:
        """Raises `EngineFailed` for a call whose arguments are no JSON object."""
        assert self._usage is not None
        content = []
        for opened, pieces in self._opened:
            block = _block(opened.kind, opened.call, "".join(pieces))
            if opened.kind == "thinking" and not self._show_thinking:
                block["thinking"] = ""
            content.append(block)
        message = _message(self._serial, self._model, content, self._end, self._usage)
        return msgspec.json.encode(message)

    def _take(self, changes: Iterable[Change]) -> None:
        for change in changes:
            match change:
                case Opened():
                    self._opened.append((change, []))
                case Piece(_, text):
                    self._opened[-1][1].append(text)
                case Closed():
                    pass  # the next one is opened, or all is there
                case _:
                    assert_never(change)


# --- parts of both --------------------------------------------------------------------------------


def _message(
    serial: str,
    model: str,
    content: list[Json],
    end: wire.ChoiceFinished | None,
    usage: wire.Usage,
) -> Json:
    return {
        "id": f"msg_{serial}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **_ending(end),
        "usage": _usage(usage),
    }


def _block(kind: Kind, call: wire.ToolCallStart | None, text: str) -> Json:
    """A block as it is when it holds `text`; one that is only opened holds none."""
    match kind:
        case "thinking":
            mark = signature(text) if text else ""
            return {"type": "thinking", "thinking": text, "signature": mark}
        case "text":
            return {"type": "text", "text": text}
        case "tool_use":
            assert call is not None
            arguments = _object(text or "{}", call.name)
            return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments}
        case _:
            assert_never(kind)


def _object(arguments: str, name: str) -> msgspec.Raw:
    """As it was written, which keeps numbers that no machine type holds."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise EngineFailed(
            f"the model called {name!r} with what is no JSON object: {error}"
        ) from error
    return msgspec.Raw(arguments.encode())


def _ending(end: wire.ChoiceFinished | None) -> Json:
    if end is None:
        return {"stop_reason": None, "stop_sequence": None}
    return {"stop_reason": _stop_reason(end), "stop_sequence": end.stop_sequence}


def _stop_reason(end: wire.ChoiceFinished) -> str:
    match end.reason:
        case "stop":
            return "end_turn" if end.stop_sequence is None else "stop_sequence"
        case "length":
            return "max_tokens"
        case "tool_calls":
            return "tool_use"
        case _:
            assert_never(end.reason)


def _usage(usage: wire.Usage) -> Json:
    """The whole prompt is `input_tokens` plus what was read from the cache.

    Our prompt cache is kept without being asked for, so no tokens are booked for making entries.
    """
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
