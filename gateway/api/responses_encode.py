"""Neutral events to a response, streamed or whole.

The shapes and the order of events are those of the OpenAI API reference. One draft grows with the
events of the call; a stream tells each step of it, a whole answer only the end. Thoughts are told
on one channel: as a summary to a client that asks for one, and else as reasoning text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

import msgspec

from engines import wire
from gateway.api.dialect import Decoded
from gateway.api.messages_encode import Blocks, Change, Closed, Kind, Opened, Piece
from gateway.api.openai_encode import finite
from gateway.api.responses_items import new_id, sealed
from gateway.errors import GatewayError
from gateway.residency import Phase
from gateway.supervisor.call import CallFailed, CallItem, ClientLeft, Granted

Json = dict[str, Any]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesDecoded(Decoded):
    """`fields`: what the response repeats of its request; `items`: its input items, as JSON.

    `previous` is the response that it continues. `summary`: thoughts are told as a summary;
    `sealed`: they are told in `encrypted_content` too.
    """

    owner: str
    fields: Json
    items: bytes
    previous: str | None
    store: bool
    background: bool
    summary: bool
    sealed: bool

    @property
    def id(self) -> str:
        return f"resp_{self.serial}"


# --- items --------------------------------------------------------------------------------------

_PREFIXES: dict[Kind, str] = {"thinking": "rs", "text": "msg", "tool_use": "fc"}


@dataclass(slots=True)
class _Item:
    """One item of the output and all its text so far."""

    kind: Kind
    index: int
    id: str
    call: wire.ToolCallStart | None = None
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, summary: bool) -> Json:
        if self.kind == "text":
            told: Json = {"type": "output_text", "annotations": [], "logprobs": self.logprobs}
            return {**told, "text": self.text}
        return {"type": "summary_text" if summary else "reasoning_text", "text": self.text}

    def body(self, decoded: ResponsesDecoded) -> Json:
        """The item as it is now; one that holds no text yet has no parts."""
        head: Json = {"id": self.id}
        if self.kind == "tool_use":
            assert self.call is not None
            call = {"call_id": self.call.call_id, "name": self.call.name, "arguments": self.text}
            return {**head, "type": "function_call", "status": self.status, **call}
        parts = [self.part(decoded.summary)] if self.pieces else []
        if self.kind == "text":
            head |= {"type": "message", "status": self.status, "role": "assistant"}
            return {**head, "content": parts}
        summary, content = (parts, []) if decoded.summary else ([], parts)
        seal = sealed(self.text) if decoded.sealed and self.pieces else None
        head |= {"type": "reasoning", "status": self.status, "encrypted_content": seal}
        return {**head, "summary": summary, "content": content}


# --- the response under way -----------------------------------------------------------------------


class Draft:
    """A response as it grows; the owner of its status, its items and its usage.

    `begin`, `take`, `fail` and `cancel` return the events that tell the step, without their
    sequence numbers.
    """

    def __init__(self, decoded: ResponsesDecoded) -> None:
        self._decoded = decoded
        self._blocks = Blocks()
        self._logprobs: list[Json] = []
        self._reason: wire.FinishReason | None = None
        self._usage: wire.Usage | None = None
        self._error: GatewayError | None = None
        self._completed_at: int | None = None
        self.items: list[_Item] = []
        self.status: Status = "queued" if decoded.background else "in_progress"
        self.begun = False

    @property
    def open(self) -> _Item | None:
        """The item that text goes to now."""
        return self.items[-1] if self._blocks.open is not None else None

    def begin(self) -> Iterator[Json]:
        self.begun = True
        yield self._lifecycle("created")
        yield self._lifecycle(self.status)

    def take(self, item: CallItem) -> Iterator[Json]:
        match item:
            case (
                wire.TextDelta()
                | wire.ReasoningDelta()
                | wire.ToolCallStart()
                | wire.ToolCallArguments()
            ):
                yield from self._delta(item)
            case wire.Started():
                yield from self._start()
            case wire.ChoiceFinished():
                self._reason = item.reason
                yield from self._changes(self._blocks.close())
            case wire.Finished():
                self._usage = item.usage
                self._end("incomplete" if self._reason == "length" else "completed")
                yield self._lifecycle(self.status)
            case Phase() | Granted() | ClientLeft() | CallFailed() | wire.PromptProgress():
                pass  # these say nothing in this dialect, or end the response elsewhere
            case wire.Bytes() | wire.Scores() | wire.Segment() | wire.Transcript():
                pass  # no model that generates text sends these
            case _:
                assert_never(item)

    def fail(self, error: GatewayError) -> Iterator[Json]:
        if not self.begun:
            yield from self.begin()
        self._error = error
        self._end("failed")
        yield self._lifecycle("failed")

    def cancel(self) -> Iterator[Json]:
        self._end("cancelled")
        yield _error("cancelled", "the response was cancelled")

    def beat(self) -> Json:
        """The status once more, without what may be long."""
        slim = {**self.response(), "instructions": None, "tools": [], "output": []}
        return {"type": f"response.{self.status}", "response": slim}

    def response(self) -> Json:
        """The whole object as it is now."""
        decoded, error = self._decoded, self._error
        return {
            "id": decoded.id,
            "object": "response",
            "status": self.status,
            "completed_at": self._completed_at,
            "error": error and {"code": error.code, "message": error.message},
            "incomplete_details": (
                {"reason": "max_output_tokens"} if self.status == "incomplete" else None
            ),
            "output": [item.body(decoded) for item in self.items],
            "usage": None if self._usage is None else _usage(self._usage),
            **decoded.fields,
        }

    def _lifecycle(self, name: str) -> Json:
        return {"type": f"response.{name}", "response": self.response()}

    def _start(self) -> Iterator[Json]:
        queued, self.status = self.status == "queued", "in_progress"
        if not self.begun:
            yield from self.begin()
        elif queued:
            yield self._lifecycle("in_progress")

    def _end(self, status: Status) -> None:
        self.status = status
        if status == "completed":
            self._completed_at = int(time.time())
        for item in self.items:
            if item.status == "in_progress":
                item.status = "incomplete"

    def _delta(self, delta: wire.Delta) -> Iterator[Json]:
        if isinstance(delta, wire.TextDelta):
            self._logprobs += map(_logprob, delta.logprobs or ())
        yield from self._changes(self._blocks.take(delta))

    def _changes(self, changes: Iterator[Change]) -> Iterator[Json]:
        for change in changes:
            match change:
                case Opened():
                    yield from self._open(change)
                case Piece():
                    yield self._piece(self.items[-1], change.text)
                case Closed():
                    yield from self._close(self.items[-1])
                case _:
                    assert_never(change)

    def _open(self, opened: Opened) -> Iterator[Json]:
        if opened.kind != "text":
            self._logprobs = []  # of white space that belongs to no item
        item = _Item(opened.kind, opened.index, new_id(_PREFIXES[opened.kind]), opened.call)
        self.items.append(item)
        yield self._item_event("added", item)
        if item.kind != "tool_use":
            yield self._part_event("added", item)

    def _piece(self, item: _Item, text: str) -> Json:
        item.pieces.append(text)
        event = {"type": self._names(item)[0], **self._place(item), "delta": text}
        if item.kind == "text":
            event["logprobs"], self._logprobs = self._logprobs, []
            item.logprobs += event["logprobs"]
        return event

    def _close(self, item: _Item) -> Iterator[Json]:
        if item.kind == "tool_use" and not item.pieces and self._reason != "length":
            yield self._piece(item, "{}")  # no arguments are an empty object
        item.status = "incomplete" if self._reason == "length" else "completed"
        done = {"type": self._names(item)[1], **self._place(item)}
        if item.kind == "tool_use":
            assert item.call is not None
            yield {**done, "name": item.call.name, "arguments": item.text}
        else:
            logprobs = {"logprobs": item.logprobs} if item.kind == "text" else {}
            yield {**done, "text": item.text, **logprobs}
            yield self._part_event("done", item)
        yield self._item_event("done", item)

    def _item_event(self, step: str, item: _Item) -> Json:
        body = item.body(self._decoded)
        return {"type": f"response.output_item.{step}", "output_index": item.index, "item": body}

    def _part_event(self, step: str, item: _Item) -> Json:
        summary = item.kind == "thinking" and self._decoded.summary
        kind = "reasoning_summary_part" if summary else "content_part"
        part = item.part(self._decoded.summary)
        return {"type": f"response.{kind}.{step}", **self._place(item), "part": part}

    def _names(self, item: _Item) -> tuple[str, str]:
        match item.kind:
            case "tool_use":
                name = "response.function_call_arguments"
            case "text":
                name = "response.output_text"
            case "thinking" if self._decoded.summary:
                name = "response.reasoning_summary_text"
            case "thinking":
                name = "response.reasoning_text"
            case _:
                assert_never(item.kind)
        return f"{name}.delta", f"{name}.done"

    def _place(self, item: _Item) -> Json:
        place: Json = {"item_id": item.id, "output_index": item.index}
        if item.kind == "tool_use":
            return place
        summary = item.kind == "thinking" and self._decoded.summary
        return {**place, "summary_index" if summary else "content_index": 0}


def _logprob(token: wire.TokenLogprob) -> Json:
    top = [_token(*alternative) for alternative in token.top]
    return {**_token(token.token, token.logprob), "top_logprobs": top}


def _token(token: str, logprob: float) -> Json:
    return {"token": token, "bytes": list(token.encode()), "logprob": finite(logprob)}


def _usage(usage: wire.Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error(code: str, message: str) -> Json:
    return {"type": "error", "code": code, "message": message, "param": None}


# --- the two encoders -----------------------------------------------------------------------------

Keep = Callable[[ResponsesDecoded, Json], None]
"""Called once with the response when it is over, unless an error is all the answer there is."""


class EventEncoder:
    """Events to frames; frame n has the sequence number n. There is no `[DONE]`."""

    def __init__(self, decoded: ResponsesDecoded, keep: Keep) -> None:
        self.draft = Draft(decoded)
        self._decoded = decoded
        self._keep = keep
        self._number = 0
        self._told: _Item | None = None
        self._head = b""

    def begin(self) -> list[bytes]:
        """The first frames, before the call has begun."""
        return [self._frame(event) for event in self.draft.begin()]

    def heartbeat(self) -> bytes:
        """Codex counts parsed events as signs of life, and no comments."""
        if not self.draft.begun:
            return b"".join(self.begin())
        return self._frame(self.draft.beat())

    def frames(self, items: Sequence[CallItem]) -> list[bytes]:
        frames: list[bytes] = []
        for item in items:
            # Nearly every item of a stream is more text of the item that is open.
            if type(item) is wire.TextDelta and item.logprobs is None and self._is_told():
                frames.append(self._text(item.text))
            else:
                frames += [self._frame(event) for event in self.draft.take(item)]
                if type(item) is wire.Finished:
                    self._keep(self._decoded, self.draft.response())
        return frames

    def error(self, error: GatewayError) -> bytes:
        frames = [self._frame(event) for event in self.draft.fail(error)]
        self._keep(self._decoded, self.draft.response())
        return b"".join(frames)

    def cancel(self) -> list[bytes]:
        """The frames that end a stream whose response was cancelled."""
        return [self._frame(event) for event in self.draft.cancel()]

    def _is_told(self) -> bool:
        """Whether text goes to an item that has its beginning of a frame."""
        item = self.draft.open
        if item is None or item.kind != "text":
            return False
        if item is not self._told:
            self._told = item
            self._head = (
                b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
                b'"item_id":"%b","output_index":%d,"content_index":0,"logprobs":[],"delta":'
                % (item.id.encode(), item.index)
            )
        return True

    def _text(self, text: str) -> bytes:
        assert self._told is not None
        self._told.pieces.append(text)
        number = self._number
        self._number += 1
        return self._head + msgspec.json.encode(text) + b',"sequence_number":%d}\n\n' % number

    def _frame(self, event: Json) -> bytes:
        """The name of an event is its type."""
        event["sequence_number"] = self._number
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


class ResponseEncoder:
    """Events to one response object."""

    def __init__(self, decoded: ResponsesDecoded, keep: Keep) -> None:
        self._decoded = decoded
        self._keep = keep
        self._draft = Draft(decoded)

    def add(self, items: Sequence[CallItem]) -> None:
        for item in items:
            for _ in self._draft.take(item):
                pass  # only the end is told

    def body(self) -> bytes:
        response = self._draft.response()
        self._keep(self._decoded, response)
        return msgspec.json.encode(response)


def gone(number: int, message: str) -> bytes:
    """The frame that ends the stream of a reader who cannot be told the rest."""
    event = {**_error("not_found", message), "sequence_number": number}
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(event)
