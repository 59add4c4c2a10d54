"""One question in every dialect, put and read by the official clients.

Each dialect is an `Asker`: it makes a conversation in its own shape, asks, whole or streamed, and
tells in neutral words what came back. What it `said` goes back into a conversation as it is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anthropic
import openai
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

Turns = list[Any]
"""A conversation in a dialect's own shape."""

SECONDS = 120.0
_RESPONSE_ENDS = ("response.completed", "response.incomplete")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a model, in neutral words; `tools` are names and parameter schemas.

    `choice` is auto, none, required, or the name of the tool that is to be called.
    """

    turns: Turns
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    choice: str = "auto"
    stop: Sequence[str] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    most_tokens: int = 300


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client sees of an answer. `reason` is stop, length or tool_calls."""

    text: str = ""
    trace: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    reason: str = "stop"
    call_ids: Sequence[str] = field(default=(), compare=False)
    prompt_tokens: int = field(default=0, compare=False)
    said: Turns = field(default_factory=list, compare=False)


class Asker(Protocol):
    """One dialect. `stops` says whether a request can name stop strings."""

    name: str
    stops: bool

    async def ask(self, model: str, question: Question, *, streamed: bool) -> Seen:
        """The answer; at temperature 0, where there is one."""

    def results(self, seen: Seen, text: str) -> Turns:
        """What goes back behind `seen.said`: `text` as the result of every call."""


def user(text: str) -> dict[str, Any]:
    """A user's turn, which has the same shape in all dialects."""
    return {"role": "user", "content": text}


@contextlib.asynccontextmanager
async def askers(url: str) -> AsyncIterator[dict[str, Asker]]:
    """Every dialect of the gateway at `url`, by name."""
    # Certificates, which take a client long to read, are of no use here.
    common: Any = {"api_key": "none", "max_retries": 0, "timeout": SECONDS}
    async with (
        AsyncOpenAI(
            base_url=f"{url}/v1",
            http_client=openai.DefaultAsyncHttpxClient(verify=False),
            **common,
        ) as theirs,
        AsyncAnthropic(
            base_url=url, http_client=anthropic.DefaultAsyncHttpxClient(verify=False), **common
        ) as others,
    ):
        yield {each.name: each for each in (Chat(theirs), Responses(theirs), Messages(others))}


class Chat:
    name = "chat"
    stops = True

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def ask(self, model: str, question: Question, *, streamed: bool) -> Seen:
        fields: Any = {
            "model": model,
            "messages": question.turns,
            "temperature": 0,
            "max_tokens": question.most_tokens,
            "extra_body": {"chat_template_kwargs": dict(question.template_kwargs)},
            **({"stop": list(question.stop)} if question.stop else {}),
            **({"tools": _functions(question.tools)} if question.tools else {}),
            **_choice(question, lambda name: {"type": "function", "function": {"name": name}}),
        }
        if streamed:
            fields["stream_options"] = {"include_usage": True}
            completion = await self._streamed(fields)
        else:
            completion = await self._client.chat.completions.create(**fields)
        (choice,) = completion.choices
        message: Any = choice.message
        calls = message.tool_calls or []
        return Seen(
            text=message.content or "",
            trace=getattr(message, "reasoning_content", None) or "",
            calls=tuple(
                (call.function.name, json.loads(call.function.arguments)) for call in calls
            ),
            reason=choice.finish_reason,
            call_ids=[call.id for call in calls],
            prompt_tokens=completion.usage.prompt_tokens,
            said=[_without_parsed(message.to_dict())],
        )

    async def _streamed(self, fields: Any) -> Any:
        async with self._client.chat.completions.stream(**fields) as stream:
            try:
                return await stream.get_final_completion()
            except openai.LengthFinishReasonError as error:
                return error.completion

    def results(self, seen: Seen, text: str) -> Turns:
        return [
            {"role": "tool", "tool_call_id": call_id, "content": text} for call_id in seen.call_ids
        ]


class Responses:
    name = "responses"
    stops = False

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def ask(self, model: str, question: Question, *, streamed: bool) -> Seen:
        tools = [
            {"type": "function", "name": name, "parameters": dict(schema), "strict": False}
            for name, schema in question.tools.items()
        ]
        fields: Any = {
            "model": model,
            "input": question.turns,
            "temperature": 0,
            "store": False,
            "max_output_tokens": question.most_tokens,
            "extra_body": {"chat_template_kwargs": dict(question.template_kwargs)},
            **({"tools": tools} if tools else {}),
            **_choice(question, lambda name: {"type": "function", "name": name}),
        }
        if streamed:
            async with self._client.responses.stream(**fields) as stream:
                # The client's own way to the last response knows no end but a completed one.
                events: list[Any] = [event async for event in stream]
            (response,) = (it.response for it in events if it.type in _RESPONSE_ENDS)
        else:
            response = await self._client.responses.create(**fields)
        items: list[Any] = [item.to_dict() for item in response.output]
        calls = [item for item in items if item["type"] == "function_call"]
        cut = response.status == "incomplete"
        return Seen(
            text="".join(_parts(items, "message")),
            trace="".join(_parts(items, "reasoning")),
            calls=tuple((call["name"], json.loads(call["arguments"])) for call in calls),
            reason="length" if cut else "tool_calls" if calls else "stop",
            call_ids=[call["call_id"] for call in calls],
            prompt_tokens=response.usage.input_tokens,
            said=[_without_parsed(item) for item in items],
        )

    def results(self, seen: Seen, text: str) -> Turns:
        return [
            {"type": "function_call_output", "call_id": call_id, "output": text}
            for call_id in seen.call_ids
        ]


class Messages:
    name = "messages"
    stops = True

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client

    async def ask(self, model: str, question: Question, *, streamed: bool) -> Seen:
        tools = [
            {"name": name, "input_schema": {"type": "object", **schema}}
            for name, schema in question.tools.items()
        ]
        fields: Any = {
            "model": model,
            "messages": question.turns,
            "max_tokens": question.most_tokens,
            "extra_body": {
                "temperature": 0,
                "chat_template_kwargs": dict(question.template_kwargs),
            },
            **({"stop_sequences": list(question.stop)} if question.stop else {}),
            **({"tools": tools} if tools else {}),
            **_choice(question, lambda name: {"type": "tool", "name": name}, _ANTHROPIC),
        }
        if streamed:
            async with self._client.messages.stream(**fields) as stream:
                message: Any = await stream.get_final_message()
        else:
            message = await self._client.messages.create(**fields)
        blocks: list[Any] = list(message.content)
        calls = [block for block in blocks if block.type == "tool_use"]
        reasons = {"max_tokens": "length", "tool_use": "tool_calls"}
        return Seen(
            text="".join(block.text for block in blocks if block.type == "text"),
            trace="".join(block.thinking for block in blocks if block.type == "thinking"),
            calls=tuple((call.name, call.input) for call in calls),
            reason=reasons.get(message.stop_reason, "stop"),
            call_ids=[call.id for call in calls],
            prompt_tokens=message.usage.input_tokens
            + (message.usage.cache_read_input_tokens or 0)
            + (message.usage.cache_creation_input_tokens or 0),
            said=[message.to_param()],
        )

    def results(self, seen: Seen, text: str) -> Turns:
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for call_id in seen.call_ids
        ]
        return [{"role": "user", "content": blocks}]


_ANTHROPIC: Mapping[str, Any] = {"none": {"type": "none"}, "required": {"type": "any"}}


def _choice(
    question: Question, named: Callable[[str], Any], words: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The `tool_choice` of a request, where it is not left to the model."""
    words = words or {"none": "none", "required": "required"}
    if question.choice == "auto":
        return {}
    return {"tool_choice": words.get(question.choice) or named(question.choice)}


def _functions(tools: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": dict(schema)}}
        for name, schema in tools.items()
    ]


def _parts(items: Sequence[dict[str, Any]], kind: str) -> list[str]:
    """The texts of all items of a kind; a trace is in its contents, or else in its summary."""
    return [
        part["text"]
        for item in items
        if item["type"] == kind
        for part in item.get("content") or item.get("summary") or ()
    ]


def _without_parsed(value: Any) -> Any:
    """Without what the client adds for its own users, and no server has heard of."""
    if isinstance(value, dict):
        dropped = ("parsed", "parsed_arguments")
        return {key: _without_parsed(item) for key, item in value.items() if key not in dropped}
    return [_without_parsed(item) for item in value] if isinstance(value, list) else value
