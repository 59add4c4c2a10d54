"""What a generating dialect gives the exchange: a decoded request and encoders for its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from engines import wire
from gateway.api.errors import JSON, OPENAI, ErrorForm
from gateway.api.media import MediaRef
from gateway.errors import GatewayError
from gateway.registry.schema import Kind
from gateway.security.media import MediaFile
from gateway.supervisor.call import CallItem
from gateway.supervisor.setup import PLAIN, Wish


@dataclass(frozen=True, slots=True)
class Defaults:
    """A model's own values for what a request leaves open; None leaves it to the dialect."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    parsers: wire.Parsers = field(default_factory=wire.Parsers)


Make = Callable[[int, Defaults], wire.Request]
"""Completes a checked request with a call id and the model's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A checked request, as far as the exchange has to know it; a dialect adds what it needs.

    `make` makes its call. A request with several prompts has one more call for each of
    `others`: choice k of call c is then choice c * `n` + k of the answer. `media` are the images
    that its messages have placeholders for. `timeout_s` is how long the client gives the whole of
    it. `fingerprint`, which the exchange fills in, changes with what the model is made of. `serial`
    is the unique part of the answer's id, and the exchange has it from the request's own, so that
    either of the two ids finds a request. `uploads` are files that came with it, removed when it
    ends; `answer_type` is the content type of an answer that is one body, `raw` of one that is a
    file, sent as it is made (None for all others).
    """

    model: str
    stream: bool
    include_usage: bool
    make: Make
    others: tuple[Make, ...] = ()
    n: int = 1
    media: tuple[MediaRef, ...] = ()
    timeout_s: float | None = None
    raw: str | None = None
    uploads: tuple[MediaFile, ...] = ()
    answer_type: bytes = JSON[1]
    wish: Wish = PLAIN
    fingerprint: str | None = None
    serial: str = field(default_factory=lambda: uuid4().hex)


AnyDecoded = TypeVar("AnyDecoded", bound=Decoded)


class StreamEncoder(Protocol):
    """Call items to frames of an event stream."""

    def heartbeat(self) -> bytes:
        """The frame that says, in a silence, that the call goes on."""

    def frames(self, items: Sequence[CallItem]) -> list[bytes]:
        """The frames of these items, in order."""

    def error(self, error: GatewayError) -> bytes:
        """The frame that ends a stream in failure."""


class BodyEncoder(Protocol):
    """Call items to one body."""

    def add(self, items: Sequence[CallItem]) -> None:
        """Takes items in, in order."""

    def body(self) -> bytes:
        """The whole body; only after `Finished`."""


@dataclass(frozen=True, slots=True)
class Dialect(Generic[AnyDecoded]):
    """A dialect, as data: its route, its decoder, its encoders, its errors before a stream.

    `kinds` are those of the models that can serve it. `credited`: its engines send `Bytes` by
    credit, which is given as the client takes them. `decode` takes a body of JSON, with `form` an
    `uploads.Form` instead. Without `buffered` every answer is streamed, without `stream` none is.
    The bodies of a `large` dialect are written in a thread, so that other answers go on meanwhile.
    """

    route: str
    decode: Callable[[Any], AnyDecoded]
    stream: Callable[[AnyDecoded], StreamEncoder] | None = None
    buffered: Callable[[AnyDecoded], BodyEncoder] | None = None
    errors: ErrorForm = OPENAI
    kinds: tuple[Kind, ...] = ("text", "vision")
    form: bool = False
    credited: bool = False
    large: bool = False
