"""One choice on its way to the client: pieces of generated text in, wire deltas out, in order.

Owns the choice's pipeline, its count of reasoning tokens, and the log-probabilities of tokens whose
text nobody has seen yet: those travel with their text. Pure: no clock, no I/O.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from typing import Literal

from engines import wire
from engines.base import EngineError
from engines.parsers.events import CallArguments, CallEnd, CallStart, Event, Reasoning, Text
from engines.parsers.formats import ToolFormat
from engines.parsers.pipeline import Pipeline

Reason = Literal["stop", "length"]


def tools_offered(request: wire.Generate | wire.CountTokens) -> bool:
    """Whether the model gets to see the request's tools: with `none` it must not call any."""
    return bool(request.tools) and request.tool_choice.mode != "none"


def make_pipeline(
    request: wire.Generate,
    parsers: wire.Parsers,
    *,
    prompt_tail: str = "",
    special_tokens: frozenset[str] = frozenset(),
    thinking: bool | None = None,
    tool_format: ToolFormat | None = None,
) -> Pipeline | None:
    """A pipeline for one choice of `request`, or None where its text needs none.

    `parsers` are the request's own with `auto` resolved; `tool_format` is the format of its tool
    parser, where that is in no table. Raises `EngineError` for an unknown name.
    """
    tool = parsers.tool if tools_offered(request) else None
    stops = [stop for stop in request.stop if stop]
    if tool is None and parsers.reasoning is None and not stops:
        return None
    try:
        return Pipeline(
            tool=tool_format or tool if tool else None,
            reasoning=parsers.reasoning,
            tools=request.tools,
            stops=stops,
            prompt_tail=prompt_tail,
            special_tokens=special_tokens,
            thinking=thinking,
            new_call_id=lambda: f"call_{secrets.token_hex(12)}",
        )
    except ValueError as error:
        raise EngineError("invalid_request", str(error)) from error


class Answer:
    """One choice of one call. After `over`, and after `finish`, nothing may be added.

    Without a pipeline, text passes as it is. `parallel` False ends the choice behind its first
    call. With `logprobs`, every token comes with its log-probability.
    """

    __slots__ = (
        "_choice",
        "_id",
        "_parallel",
        "_pipeline",
        "_unshown",
        "_unsorted_tokens",
        "over",
        "reasoning_tokens",
    )

    def __init__(
        self,
        call_id: int,
        choice: int,
        pipeline: Pipeline | None,
        *,
        parallel: bool = True,
        logprobs: bool = False,
    ) -> None:
        self._id = call_id
        self._choice = choice
        self._pipeline = pipeline
        self._parallel = parallel
        self._unshown = Unshown() if logprobs else None
        self._unsorted_tokens = 0
        """Tokens of which it is not known yet whether they are reasoning."""
        self.reasoning_tokens = 0
        self.over = False
        """A stop string matched, or the only call allowed is complete."""

    def add(
        self,
        text: str,
        special: bool | None = None,
        *,
        tokens: int = 1,
        logprobs: Sequence[wire.TokenLogprob] = (),
    ) -> Sequence[wire.Delta]:
        """What `text` completes. `special`: whether it is one special token, None if unknown.

        `tokens` is how many tokens it is made of; `logprobs` are theirs, and join to `text`.
        """
        if self._unshown is not None:
            self._unshown.add(text, logprobs)
        if self._pipeline is None:
            return () if special or not text else self._shown(text)
        self._unsorted_tokens += tokens
        return self._deltas(self._pipeline.feed(text, special)) if text else ()

    def finish(self, reason: Reason) -> list[wire.Delta | wire.ChoiceFinished]:
        """The last deltas and the end. `reason` does not matter to a choice that is `over`."""
        if self._pipeline is None:
            return [wire.ChoiceFinished(self._id, self._choice, reason)]
        last: list[wire.Delta | wire.ChoiceFinished] = []
        if self.over:
            reason = "stop"
        else:
            last += self._deltas(self._pipeline.finish(reason))
        told: wire.FinishReason = reason
        if self._pipeline.finish_reason(reason) == "tool_calls":
            told = "tool_calls"
        elif self._pipeline.stopped is not None:
            told = "stop"
        stopped = self._pipeline.stopped
        return [*last, wire.ChoiceFinished(self._id, self._choice, told, stopped)]

    def _deltas(self, events: list[Event]) -> list[wire.Delta]:
        deltas: list[wire.Delta] = []
        for event in events:
            if self.over:
                break
            self._sort_tokens(event)
            match event:
                case Text(text):
                    deltas += self._shown(text)
                case Reasoning(text):
                    if self._unshown is not None:
                        self._unshown.take(text)
                    deltas.append(wire.ReasoningDelta(self._id, self._choice, text))
                case CallStart(index, call_id, name):
                    deltas.append(wire.ToolCallStart(self._id, self._choice, index, call_id, name))
                case CallArguments(index, text):
                    deltas.append(wire.ToolCallArguments(self._id, self._choice, index, text))
                case CallEnd():
                    self.over = not self._parallel
        if self._pipeline is not None and self._pipeline.stopped is not None:
            self.over = True
        return deltas

    def _sort_tokens(self, event: Event) -> None:
        if isinstance(event, Reasoning):
            self.reasoning_tokens += self._unsorted_tokens
        elif not isinstance(event, Text) and self._unshown is not None:
            self._unshown.drop()
        self._unsorted_tokens = 0

    def _shown(self, text: str) -> tuple[wire.TextDelta]:
        if self._unshown is None:
            return (wire.TextDelta(self._id, self._choice, text),)
        return (wire.TextDelta(self._id, self._choice, text, self._unshown.take(text)),)


class Unshown:
    """Tokens in the order of generation whose text has not come out of the pipeline yet.

    The pipeline tells what is shown, not of which tokens; so what it shows is looked up in the text
    that is still to come. What stands before it there was markup, and is gone.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: deque[tuple[str, Sequence[wire.TokenLogprob]]] = deque()

    def add(self, text: str, logprobs: Sequence[wire.TokenLogprob]) -> None:
        if logprobs:
            self._pieces.extend((each.token, (each,)) for each in logprobs)
        else:
            self._pieces.append((text, ()))

    def take(self, shown: str) -> tuple[wire.TokenLogprob, ...]:
        """The log-probabilities of the tokens that `shown` is made of.

        A token that is shown in parts belongs to the first of them.
        """
        text = "".join(piece for piece, _ in self._pieces)
        at = text.find(shown)
        if at < 0:  # white space around it may be the pipeline's own
            shown = shown.strip()
            at = text.find(shown)
        begin, end = (0, len(text)) if at < 0 else (at, at + len(shown))
        taken: list[wire.TokenLogprob] = []
        position = 0
        while self._pieces and position < end:
            piece, logprobs = self._pieces.popleft()
            # A token with no text of its own is a part of the character that the next completes.
            if position + len(piece) > begin or (not piece and position >= begin):
                taken += logprobs
            position += len(piece)
            if position > end:
                self._pieces.appendleft((piece[end - position :], ()))
        return tuple(taken)

    def drop(self) -> None:
        """All but the last piece belonged to a call; text may begin within the last."""
        while len(self._pieces) > 1:
            self._pieces.popleft()
