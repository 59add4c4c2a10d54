"""Which parsers the answers of one text model go through, and how a trace of it is ended early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines import wire
from engines.answer import make_pipeline
from engines.parsers import registry
from engines.parsers.formats import ToolFormat
from engines.parsers.pipeline import Pipeline
from engines.parsers.upstream import NAMES
from engines.text import upstream
from engines.text.processors import ReasoningBudget, TraceMarkers
from engines.text.vocabulary import Vocabulary, template_kwargs

_HARMONY_PAIRS = (("<|channel|>analysis<|message|>", "<|end|>"),)
_HARMONY_ENDING = "<|end|><|start|>assistant<|channel|>final<|message|>"


class Parsing:
    """What a model's template and vocabulary say about its answers; `auto` goes by that.

    A model that shows no tool format of ours is read by mlx-lm's parser, where it has one, and else
    with the markers of all of them. One that shows no
    trace has none. Prompts that are plain text or tokens get plain text back, unless a parser is
    named.
    """

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary) -> None:
        self.template = _template(tokenizer)
        tool, reasoning = registry.infer(self.template, tokenizer.get_vocab())
        fallback = _fallback(tokenizer, self.template, tool)
        self._upstream = {fallback.names[0]: fallback} if fallback else {}
        tool = fallback.names[0] if fallback else tool
        self._inferred = wire.Parsers(tool or registry.AUTO, reasoning)
        self._vocabulary = vocabulary
        self._special_tokens = frozenset(vocabulary.special.values())

    def pipelines(self, request: wire.Generate, prompt: Sequence[int]) -> list[Pipeline | None]:
        """One for each choice; None where the text needs none. Raises `EngineError`."""
        parsers = self.parsers(request)
        parsed = parsers.tool is not None or parsers.reasoning is not None
        tail = self._vocabulary.tail(prompt) if parsed else ""
        tool_format = self._format(parsers.tool)
        return [
            make_pipeline(
                request,
                parsers,
                prompt_tail=tail,
                special_tokens=self._special_tokens,
                thinking=_thinking(request),
                tool_format=tool_format,
            )
            for _ in range(request.n)
        ]

    def _format(self, tool: str | None) -> ToolFormat | None:
        """The format of a tool parser that only mlx-lm has; None for every other."""
        if tool not in self._upstream and (found := upstream.named(tool)) is not None:
            self._upstream[found.names[0]] = found
        return self._upstream.get(tool or "")

    def budgets(self, request: wire.Generate, prompt: Sequence[int]) -> list[ReasoningBudget]:
        """One for each choice of a request that limits its trace; none for any other."""
        tokens = request.reasoning.budget_tokens
        if tokens is None:
            return []
        markers = self.markers(request, prompt)
        if markers is None:
            return []
        new, special = self._vocabulary.detokenizers, self._vocabulary.special
        return [ReasoningBudget(tokens, markers, new(), special.get) for _ in range(request.n)]

    def parsers(self, request: wire.Generate) -> wire.Parsers:
        """The request's parsers with `auto` resolved."""
        chat = request.prompt is None and request.token_ids is None
        auto = self._inferred if chat else wire.Parsers(None, None)
        given = request.parsers
        return wire.Parsers(
            auto.tool if given.tool == registry.AUTO else given.tool,
            auto.reasoning if given.reasoning == registry.AUTO else given.reasoning,
        )

    def family(self, tool: str | None) -> ToolFormat | None:
        """The family of a tool parser; None for one that only mlx-lm has.

        Raises `ValueError` for an unknown name.
        """
        return None if self._format(tool) is not None else registry.tool_format(tool)

    def markers(self, request: wire.Generate, prompt: Sequence[int]) -> TraceMarkers | None:
        """How a trace of this request is marked; None where the family has none."""
        family = registry.reasoning_format(self.parsers(request).reasoning)
        if family is None:
            return None
        encode = self._vocabulary.encode_apart
        pairs: tuple[tuple[str, str], ...] = _HARMONY_PAIRS
        if family.channels:
            closing = {closer: encode(_HARMONY_ENDING) for _, closer in pairs}
        else:
            pairs = family.tags
            closing = {closer: encode(closer) for _, closer in pairs}
        tail = self._vocabulary.tail(prompt).rstrip()
        opened = next((closer for opener, closer in pairs if tail.endswith(opener)), None)
        may_open = _thinking(request) is not False and not tail.endswith(tuple(closing))
        if opened is None and family.implicit and may_open:
            opened = pairs[0][1]
        return TraceMarkers(pairs, closing, opened, may_open)


def _fallback(tokenizer: Any, template: str, tool: str | None) -> ToolFormat | None:
    """mlx-lm's parser where it is needed; `tool` is the family that we found ourselves, if any.

    A vocabulary often has tokens of other families, so what mlx-lm alone knows goes before that.
    """
    if registry.infer(template, ())[0] is not None:
        return None
    found = upstream.inferred(tokenizer)
    return found if found is not None and (tool is None or found.names[0] in NAMES) else None


def _thinking(request: wire.Generate) -> bool | None:
    """Whether the template was told to let the model think."""
    told = template_kwargs(request).get("enable_thinking")
    return told if isinstance(told, bool) else None


def _template(tokenizer: Any) -> str:
    """The chat template's text; of several named ones, all of them."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        return "\n".join(map(str, template.values()))
    return str(template or "")
