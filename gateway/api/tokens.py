"""`/tokenize`, `/detokenize` and Anthropic's `count_tokens`: questions that load no model.

The first two have the shapes of vLLM's server. A ready model's engine answers, else the tokenizer
worker; either way no lease is taken and no idle clock is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engines import wire
from gateway.api.body import read_body
from gateway.api.chat_messages import ChatMessage, Tool, conversation, tools_of
from gateway.api.decode import BodyDecoder, check_plain
from gateway.api.media import (
    Attachments,
    Gathered,
    Media,
    MediaRef,
    refuse_media,
    remove,
    taken_by,
)
from gateway.api.messages import PromptRequest, prompt_of
from gateway.api.sse import respond
from gateway.errors import BodyTooLarge, InvalidRequest
from gateway.registry.find import Model
from gateway.registry.schema import Kind
from gateway.router import served_by
from gateway.security.keys import access_of
from gateway.served import Live
from gateway.server import Receive, Scope, Send
from gateway.supervisor.supervisor import Supervisor

MAX_MESSAGES = 65_536
MAX_TOOLS = 1024
MAX_TOKENS = 4_194_304

ModelName = Annotated[str, Meta(min_length=1, max_length=512)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either a `prompt`, or `messages` as a chat completion has them, with their tools."""

    model: ModelName
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = (
        None
    )
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelName
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]


TOKENIZE = BodyDecoder(TokenizeRequest)
DETOKENIZE = BodyDecoder(DetokenizeRequest)
COUNT = BodyDecoder(PromptRequest)

ENCODERS: tuple[Kind, ...] = ("embedding", "rerank")
"""They take texts too, but no conversations."""

Make = Callable[[int, str], wire.Ask]


class Tokens:
    """The routes, as ASGI applications."""

    def __init__(self, live: Live, supervisor: Supervisor, media: Media) -> None:
        self._live = live
        self._supervisor = supervisor
        self._media = media

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = TOKENIZE.decode(await self._body(scope, receive))
        others = ENCODERS if request.messages is None else ()
        model = self._model(scope, request.model, *others)
        make, refs = _tokenizing(request, model)
        answer = await self._ask(model, make, refs, receive)
        assert isinstance(answer, wire.Tokenized)
        body = {
            "tokens": answer.token_ids,
            "count": len(answer.token_ids),
            "max_model_len": answer.context_length,
        }
        await respond(send, 200, msgspec.json.encode(body))

    async def detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = DETOKENIZE.decode(await self._body(scope, receive))
        model = self._model(scope, request.model, *ENCODERS)
        answer = await self._supervisor.ask(
            served_by(model), lambda id_, path: wire.Detokenize(id_, path, request.tokens)
        )
        assert isinstance(answer, wire.Detokenized)
        await respond(send, 200, msgspec.json.encode({"prompt": answer.text}))

    async def count(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/messages/count_tokens`."""
        request = COUNT.decode(await self._body(scope, receive))
        prompt = prompt_of(request)
        model = self._model(scope, request.model)
        kwargs = {**model.entry.chat_template_kwargs, **prompt.template_kwargs}

        def make(question_id: int, path: str) -> wire.CountTokens:
            return wire.CountTokens(
                question_id,
                path,
                prompt.messages,
                kwargs,
                prompt.tools,
                prompt.tool_choice,
                prompt.reasoning,
            )

        answer = await self._ask(model, make, prompt.media, receive)
        assert isinstance(answer, wire.Counted)
        await respond(send, 200, msgspec.json.encode({"input_tokens": answer.tokens}))

    async def _ask(
        self, model: Model, make: Make, refs: Sequence[MediaRef], receive: Receive
    ) -> wire.Answer:
        """The answer about a prompt with these media. Raises as the fetch, and as the question."""
        base = served_by(model)
        refuse_media(refs, model.entry.name, taken_by(model, self._supervisor.slots[base].ready))
        files = await self._media.fetch(refs, self._live.now.server, receive)
        media = Gathered(tuple(refs), files)
        try:
            return await self._supervisor.ask(base, lambda *given: media.into_ask(make(*given)))
        finally:
            remove(files)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        try:
            return await read_body(scope, receive, self._live.now.server.max_body_mb * 2**20)
        except BodyTooLarge:
            # A client that is still sending gets a reset, and not this, if we close at once.
            scope["state"]["unread"] = True
            raise

    def _model(self, scope: Scope, name: str, *others: Kind) -> Model:
        router = access_of(scope).router(self._live.now.router)
        model = router.resolve(name, "text", "vision", *others)
        scope["state"]["model"] = model.entry.name
        return model


def _tokenizing(request: TokenizeRequest, model: Model) -> tuple[Make, tuple[MediaRef, ...]]:
    """The question, and the media of its messages.

    Raises `InvalidRequest` unless there is one prompt of one kind.
    """
    prompt, messages = request.prompt, request.messages
    if (prompt is None) == (messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if messages is None:
        special = request.add_special_tokens is not False
        return (lambda id_, path: wire.Tokenize(id_, path, prompt or "", special)), ()
    check_plain(request.chat_template_kwargs, "chat_template_kwargs")
    kwargs = {**model.entry.chat_template_kwargs, **(request.chat_template_kwargs or {})}
    if request.add_generation_prompt is not None:
        kwargs["add_generation_prompt"] = request.add_generation_prompt
    attachments = Attachments()
    turns, tools = conversation(messages, attachments), tools_of(request.tools)
    return (
        lambda id_, path: wire.CountTokens(id_, path, turns, kwargs, tools, listed=True),
        attachments.refs,
    )
