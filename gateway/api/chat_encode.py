"""Neutral events to chat completion chunks, or to one chat completion.

The shapes and the order of chunks are those of the OpenAI API reference. Reasoning is shown under
both names that clients of open-weight models look for: `reasoning_content` and `reasoning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from engines import wire
from gateway.api.dialect import Decoded
from gateway.api.openai_encode import Chunks, finite, head, usage_object
from gateway.api.sse import COMMENT
from gateway.errors import GatewayError
from gateway.residency import Phase
from gateway.supervisor.call import CallFailed, CallItem, ClientLeft, Granted

ID_PREFIX = "chatcmpl-"


class ChunkEncoder:
    """Events to frames: role first, one finish reason for each choice, usage when asked, `[DONE]`.

    Text without log-probabilities is nearly all that is ever sent, so its frames are put together
    from parts that were encoded once.
    """

    def __init__(self, decoded: Decoded) -> None:
        self._n = decoded.n
        self._chunks = Chunks(decoded, ID_PREFIX, "chat.completion.chunk")
        self._texts: dict[int, bytes] = {}
        self._text_end = b'},"finish_reason":null}]' + self._chunks.tail

    def heartbeat(self) -> bytes:
        return COMMENT

    def frames(self, items: Sequence[CallItem]) -> list[bytes]:
        frames: list[bytes] = []
        for item in items:
            match item:
                case wire.TextDelta():
                    frames.append(self._text(item))
                case wire.ReasoningDelta() | wire.ToolCallStart() | wire.ToolCallArguments():
                    frames.append(self._chunk(item.choice, _delta(item)))
                case wire.Started():
                    role = {"role": "assistant", "content": ""}
                    frames.extend(self._chunk(choice, role) for choice in range(self._n))
                case wire.ChoiceFinished():
                    frames.append(self._chunk(item.choice, {}, item.reason))
                case wire.Finished():
                    frames.extend(self._chunks.end(item.usage))
                case Phase() | Granted() | ClientLeft() | CallFailed() | wire.PromptProgress():
                    pass  # these have no frame in this dialect, or end the stream elsewhere
                case wire.Bytes() | wire.Scores() | wire.Segment() | wire.Transcript():
                    pass  # no model that generates text sends these
                case _:
                    assert_never(item)
        return frames

    def error(self, error: GatewayError) -> bytes:
        return self._chunks.error(error)

    def _text(self, delta: wire.TextDelta) -> bytes:
        if delta.logprobs is not None:
            return self._chunk(delta.choice, {"content": delta.text}, None, delta.logprobs)
        start = self._texts.get(delta.choice)
        if start is None:
            start = self._texts[delta.choice] = (
                self._chunks.start + b'[{"index":%d,"delta":{"content":' % delta.choice
            )
        return start + msgspec.json.encode(delta.text) + self._text_end

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: Sequence[wire.TokenLogprob] | None = None,
    ) -> bytes:
        body: dict[str, Any] = {"index": choice, "delta": delta}
        if logprobs is not None:
            body["logprobs"] = _logprobs(logprobs)
        body["finish_reason"] = reason
        return self._chunks.chunk([body])


def _delta(
    item: wire.ReasoningDelta | wire.ToolCallStart | wire.ToolCallArguments,
) -> dict[str, Any]:
    """A call's id and name come once, at its start; its arguments are pieces of one text."""
    match item:
        case wire.ReasoningDelta():
            return {"reasoning_content": item.text, "reasoning": item.text}
        case wire.ToolCallStart():
            function = {"name": item.name, "arguments": ""}
            call = {"index": item.index, "id": item.call_id, "type": "function"}
            return {"tool_calls": [{**call, "function": function}]}
        case wire.ToolCallArguments():
            return {"tool_calls": [{"index": item.index, "function": {"arguments": item.text}}]}


def _logprobs(tokens: Sequence[wire.TokenLogprob]) -> dict[str, Any]:
    content = [
        {
            **_token(token.token, token.logprob),
            "top_logprobs": [_token(*alternative) for alternative in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": finite(logprob), "bytes": list(token.encode())}


@dataclass(slots=True)
class _Choice:
    """What has come of one choice."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[wire.TokenLogprob] = field(default_factory=list)
    calls: list[wire.ToolCallStart] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    reason: wire.FinishReason = "stop"

    def add(self, delta: wire.Delta) -> None:
        match delta:
            case wire.TextDelta():
                self.text.append(delta.text)
                self.logprobs.extend(delta.logprobs or ())
            case wire.ReasoningDelta():
                self.reasoning.append(delta.text)
            case wire.ToolCallStart():
                self.calls.append(delta)
                self.arguments[delta.index] = []
            case wire.ToolCallArguments():
                self.arguments[delta.index].append(delta.text)
            case _:
                assert_never(delta)

    def message(self) -> dict[str, Any]:
        text, reasoning, calls = "".join(self.text), "".join(self.reasoning), self._whole_calls()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not text.strip() else text,
            "refusal": None,
        }
        if reasoning:
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if calls:
            message["tool_calls"] = calls
        return message

    def _whole_calls(self) -> list[dict[str, Any]]:
        """The calls to run. One that the token limit cut in two is none."""
        calls = []
        for start in self.calls:
            arguments = "".join(self.arguments[start.index])
            if self.reason == "tool_calls" or _is_json(arguments):
                function = {"name": start.name, "arguments": arguments}
                calls.append({"id": start.call_id, "type": "function", "function": function})
        return calls


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


class CompletionEncoder:
    """Events to one completion object."""

    def __init__(self, decoded: Decoded) -> None:
        self._decoded = decoded
        self._choices = [_Choice() for _ in range(decoded.n)]
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
                    self._choices[item.choice].add(item)
                case wire.ChoiceFinished():
                    self._choices[item.choice].reason = item.reason
                case wire.Finished():
                    self._usage = item.usage
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
                "message": choice.message(),
                "logprobs": _logprobs(choice.logprobs) if choice.logprobs else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        fields = head(self._decoded, ID_PREFIX, "chat.completion")
        return msgspec.json.encode(
            {**fields, "choices": choices, "usage": usage_object(self._usage)}
        )
