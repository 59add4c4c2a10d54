"""What the answers of one model have to look like: from a request to its rows' constraints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from engines import wire
from engines.answer import tools_offered
from engines.base import EngineError
from engines.parsers import registry
from engines.parsers.bodies import ANNOTATIONS, CannotForce, Tool, without
from engines.parsers.lark import Lark
from engines.parsers.tools.forced import Form, form_of, tools_of
from engines.text.constrain.compiler import (
    MAX_GRAMMAR_CHARACTERS,
    TOO_LONG,
    Compiler,
    NoGrammar,
)
from engines.text.constrain.constraint import Constraint, Thinking
from engines.text.constrain.keywords import blamed
from engines.text.parsing import Parsing
from engines.text.processors import TraceMarkers, TraceReader
from engines.text.vocabulary import Vocabulary

_FINAL = "<|channel|>final<|message|>"
_NEXT_MESSAGE = "<|start|>assistant"
_BEHIND_TRACE = ("\n\n", "\n")
"""Always a line end, as nearly every family writes: a closing tag between quotes is none."""

_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//.*')
"""Texts, regular expressions and comments of a grammar in Lark."""

_HARD = frozenset({"format", "multipleOf", "pattern", "patternProperties"})
"""Keywords that grammars keep for some values only."""


class Constrainer:
    """`width` is how many tokens the model has logits for."""

    def __init__(
        self, tokenizer: Any, width: int, vocabulary: Vocabulary, parsing: Parsing
    ) -> None:
        self._compiler = Compiler(tokenizer, width)
        self._ends = frozenset(tokenizer.eos_token_ids)
        self._vocabulary = vocabulary
        self._parsing = parsing
        added = tokenizer.added_tokens_decoder.items()
        self._tokens = {token.content: int(number) for number, token in added}

    def prepare(self) -> None:
        """Builds what the first constrained request would have to wait for."""
        self._compiler.prepare()

    def constraints(self, request: wire.Generate, prompt: Sequence[int]) -> list[Constraint]:
        """One for each choice; none where everything may be said.

        Raises `EngineError` for what cannot be promised, and for a grammar that is none.
        """
        if request.format.kind == "text" and request.tool_choice.mode in ("auto", "none"):
            return []
        plan = self._plan(request, prompt)
        first, later = self._compiled(request, plan)
        return [self._constraint(plan, first, later) for _ in range(request.n)]

    def _constraint(self, plan: _Plan, first: LLMatcher, later: LLMatcher | None) -> Constraint:
        if later is None or plan.markers is None:
            return Constraint(first.deep_copy(), self._ends)
        trace = TraceReader(
            plan.markers, self._vocabulary.detokenizers(), self._vocabulary.special.get
        )
        thinking = Thinking(trace, later.deep_copy(), plan.openers, self._compiler.tokens)
        return Constraint(first.deep_copy(), self._ends, thinking)

    # --- the plan -----------------------------------------------------------------------------

    def _plan(self, request: wire.Generate, prompt: Sequence[int]) -> _Plan:
        parsers = self._parsing.parsers(request)
        try:
            tool = self._parsing.family(parsers.tool)
            trace = registry.reasoning_format(parsers.reasoning)
        except ValueError as error:
            raise EngineError("invalid_request", str(error)) from error
        tail = self._vocabulary.tail(prompt)
        tools = _chosen(request)
        offered = tool if tools_offered(request) else None
        channels = any(each is not None and each.channels for each in (offered, trace))
        form = form_of(offered.names[0], self._parsing.template) if offered else None
        plan = _Plan(
            format=request.format,
            choice=request.tool_choice,
            tools=tools,
            form=form,
            tail=tail,
            markers=self._parsing.markers(request, prompt),
            channels=channels,
        )
        if plan.forced and form is None:
            raise EngineError(
                "tool_choice_unsupported",
                "tool_choice: calls of this model cannot be forced, as"
                f" {_why_not(parsers)}; use tool_choice auto or none",
            )
        return plan

    def _compiled(self, request: wire.Generate, plan: _Plan) -> tuple[LLMatcher, LLMatcher | None]:
        """The matchers for the beginning and for behind a trace, which may not be possible."""
        try:
            try:
                return self._matchers(plan)
            except NoGrammar:
                if not plan.tools:
                    raise
                # A tool that is called with some of its values unchecked is better than none.
                return self._matchers(plan.relaxed())
        except CannotForce as error:
            raise EngineError("tool_choice_unsupported", f"tool_choice: {error}") from error
        except NoGrammar as error:
            raise _refusal(request, plan, str(error)) from error
        except RecursionError as error:
            raise _refusal(request, plan, "it is nested too deeply") from error

    def _matchers(self, plan: _Plan) -> tuple[LLMatcher, LLMatcher | None]:
        later = None
        if plan.thinks:
            later = self._compiler.compile(plan.behind_trace(Lark(self._tokens)), plan.user)
            if not plan.openers:
                return later, later
        return self._compiler.compile(plan.beginning(Lark(self._tokens)), plan.user), later


@dataclass(frozen=True, slots=True)
class _Plan:
    """`tools` are those that may be called; `form` is how; `tail` is the prompt's end."""

    format: wire.Format
    choice: wire.ToolChoice
    tools: Sequence[Tool]
    form: Form | None
    tail: str
    markers: TraceMarkers | None
    channels: bool

    @property
    def user(self) -> str | None:
        """The client's own Lark grammar; one in GBNF, as llama.cpp takes it, is translated."""
        if self.format.kind != "lark":
            return None
        grammar = str(self.format.grammar)
        if "::=" not in grammar:
            if "&" in _QUOTED.sub("", grammar):
                # Whether two expressions have anything in common may take for ever to find out.
                raise NoGrammar("intersections (&) are not supported; write one expression")
            return grammar
        if len(grammar) > MAX_GRAMMAR_CHARACTERS:
            raise NoGrammar(TOO_LONG)  # translating it takes longer than compiling it
        try:
            return str(any_to_lark(grammar))
        except RecursionError:
            raise
        except Exception as error:  # of a rule that is missing, it raises just that
            raise NoGrammar(" ".join(str(error).split())) from error

    @property
    def forced(self) -> bool:
        return self.choice.mode in ("required", "named")

    @property
    def thinks(self) -> bool:
        """Whether a trace may come first."""
        return self.markers is not None and (self.markers.open is not None or bool(self.openers))

    @property
    def openers(self) -> Sequence[str]:
        if self.markers is None or self.markers.open is not None or not self.markers.may_open:
            return ()
        return [opener for opener, _ in self.markers.pairs]

    def beginning(self, lark: Lark) -> str:
        """The grammar of everything up to where a trace begins, or else of the answer."""
        openers = [lark.markup(opener) for opener in self.openers]
        return lark.finish(lark.either([*openers, *self._answer(lark, self.tail)]))

    def behind_trace(self, lark: Lark) -> str:
        if self.channels:
            return lark.finish(
                f"{lark.markup(_NEXT_MESSAGE)} {lark.either(self._answer(lark, _NEXT_MESSAGE))}"
            )
        gap = lark.either([lark.plain(gap) for gap in _BEHIND_TRACE])
        return lark.finish(f"{gap} {lark.either(self._answer(lark, ''))}")

    def _answer(self, lark: Lark, tail: str) -> list[str]:
        """The ways to answer: a call, an answer in the format, or either."""
        ways = []
        if self.form is not None and self.tools:
            several = self.choice.parallel and self.choice.mode != "named"
            ways.append(self.form.calls(lark, self.tools, tail, several=several))
        if not self.forced:
            header = self.channels and not tail.rstrip().endswith("<|message|>")
            ways.append(f"{lark.markup(_FINAL) if header else ''} {self._formatted(lark)}")
        return ways

    def _formatted(self, lark: Lark) -> str:
        match self.format.kind:
            case "json_object":
                return lark.json({"type": "object"})
            case "json_schema":
                if not isinstance(self.format.grammar, Mapping | bool):
                    raise NoGrammar("a JSON schema must be an object or a boolean")
                return lark.json(without(self.format.grammar, ANNOTATIONS))
            case "regex":
                return lark.regex(regex_to_lark(str(self.format.grammar), ""))
            case "lark":
                return "@user"
            case "text":
                return lark.regex("(?s:.*)")

    def relaxed(self) -> _Plan:
        tools = [Tool(each.name, without(each.parameters, _HARD)) for each in self.tools]
        return _Plan(
            self.format, self.choice, tools, self.form, self.tail, self.markers, self.channels
        )


def _chosen(request: wire.Generate) -> Sequence[Tool]:
    """The tools that the answer may call. Raises `EngineError` where one has to and cannot."""
    if not tools_offered(request):
        tools: list[Tool] = []
    else:
        tools = tools_of(request.tools)
    choice = request.tool_choice
    if choice.mode == "named":
        tools = [tool for tool in tools if tool.name == choice.name][:1]
    if not tools and choice.mode in ("required", "named"):
        raise EngineError(
            "invalid_request", "tool_choice: there is no such tool among those of this request"
        )
    return tools


def _why_not(parsers: wire.Parsers) -> str:
    if parsers.tool is None:
        return "its calls are not parsed (tool_parser is off)"
    return f"there is no grammar for the format {parsers.tool!r}"


def _refusal(request: wire.Generate, plan: _Plan, complaint: str) -> EngineError:
    if plan.forced:
        return EngineError(
            "tool_choice_unsupported", f"tool_choice: the tools cannot be forced: {complaint}"
        )
    kind = request.format.kind
    if kind == "json_schema":
        path = blamed(request.format.grammar, complaint)
        if path is not None:
            return EngineError(
                "unsupported",
                f"the JSON schema cannot be enforced because of {path} ({complaint});"
                " leave that keyword out, or check it yourself",
            )
    names = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "grammar"}
    return EngineError(
        "invalid_request", f"the {names.get(kind, kind)} of the answer cannot be used: {complaint}"
    )
